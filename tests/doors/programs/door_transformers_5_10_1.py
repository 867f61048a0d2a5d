# /// script
# dependencies = ["transformers==5.10.1"]
# ///
"""transformers 5.10.1: opens Auto classes and a pipeline"""

from door import auto_classes_and_pipeline, run

run({"as is": auto_classes_and_pipeline})
