"""Makes the helpers importable, whichever way pytest is started."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
