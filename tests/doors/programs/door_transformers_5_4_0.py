# /// script
# dependencies = ["transformers==5.4.0"]
# ///
"""transformers 5.4.0: opens Auto classes and a pipeline"""

from door import auto_classes_and_pipeline, run

run({"as is": auto_classes_and_pipeline})
