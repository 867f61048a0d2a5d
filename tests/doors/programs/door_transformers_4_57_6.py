# /// script
# dependencies = ["transformers==4.57.6"]
# ///
"""transformers 4.57.6: opens Auto classes and a pipeline"""

from door import OLD, auto_classes_and_pipeline, run

run({"as is": auto_classes_and_pipeline}, {("bundle", "as is"): (OLD, "ours: the range that the shipped code names")})
