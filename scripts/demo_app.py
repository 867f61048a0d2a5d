"""A page in the browser to try models on: fill in blanks, tag, classify, and look at their attention.

clozebert demo-app encoder
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import MissingPackageError, UserError, as_user_errors


@dataclass
class DemoAppArguments:
    model_name_or_path: str = flag("the model: a folder or a name on the Hub; can come first, without the flag", ...)
    more_models: list[str] | None = flag("more models, a tab for each")
    host: str = flag("address to serve on; 0.0.0.0 shows the page to the whole network", "127.0.0.1")
    port: int = flag("port of the page", 7860)


def main(argv: list[str] | None = None) -> None:
    arguments = parse(DemoAppArguments, argv, doc=__doc__, verb="demo-app", first="model_name_or_path")
    try:
        import gradio  # noqa: F401
    except ImportError:
        raise MissingPackageError("the page needs gradio: pip install gradio") from None
    from clozebert.hub.demo_page import load_subject, serve
    from clozebert.hub.loading import find_folder

    _check_port(arguments.host, arguments.port)
    names = [arguments.model_name_or_path, *(arguments.more_models or [])]
    # clozebert is imported, so the code in the folders is not run.
    with as_user_errors(Exception):  # a library may raise anything for files that others made
        # Of a model on the Hub, the last part of the folder's path is the hash of a commit.
        titles = [Path(name).resolve().name if Path(name).is_dir() else name for name in names]
        folders = [str(find_folder(name)) for name in names]
        subjects = [load_subject(folder, name=title) for folder, title in zip(folders, titles, strict=True)]
    serve(subjects, server_name=arguments.host, server_port=arguments.port)


def _check_port(host: str, port: int) -> None:
    """Raise if another program serves there; gradio's message names a setting of its own."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: {error}; give another --port") from None


if __name__ == "__main__":
    run(main)
