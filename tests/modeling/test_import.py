"""`import clozebert` beside other importers and in several threads."""

import subprocess
import sys


def test_threads_that_import_at_once():
    """Some want transformers' names and some ours, as the first requests of a service may."""
    code = """
import threading, clozebert, transformers
failed = []
def use(index):
    try:
        if index % 2:
            from transformers import AutoModel
        else:
            from clozebert import ClozeBertModel
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=use, args=(index,)) for index in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_finder_of_the_old_protocol_is_no_obstacle():
    """Python 3.10 and 3.11 still take one; programs that bring old packages along have them."""
    code = "import sys; sys.meta_path.insert(0, type('Old', (), {'find_module': lambda *_: None})()); import clozebert"
    subprocess.run([sys.executable, "-c", f"{code}; from transformers import AutoConfig"], check=True, timeout=120)
