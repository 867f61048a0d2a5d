"""Print the path of a configuration file for accelerate launch --config_file.

    clozebert launch-config gpus

There are files for several GPUs, FSDP, several machines, and processes on CPUs. Start a run with one of them:

accelerate launch --config_file "$(clozebert launch-config gpus)" --num_processes 4 -m clozebert.scripts.pretrain_mlm …
"""

from dataclasses import dataclass

from clozebert.scripts._program import parse, run
from clozebert.utils.command_line import flag
from clozebert.utils.errors import as_user_errors


@dataclass
class LaunchConfigArguments:
    name: str = flag(
        "gpus (of one machine), fsdp (the model sharded over them), machines (several), or cpu (two "
        "processes); can come first, without the flag",
        ...,
        metavar="NAME",
    )


def main(argv: list[str] | None = None) -> None:
    arguments = parse(LaunchConfigArguments, argv, doc=__doc__, verb="launch-config", first="name")
    from clozebert.configuration import launch_configuration

    with as_user_errors():
        print(launch_configuration(arguments.name))


if __name__ == "__main__":
    run(main)
