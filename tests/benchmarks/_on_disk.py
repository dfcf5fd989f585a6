"""Parts of benchmarks on disk, in processes of their own, and the memory that these take."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

MB = 2**20
GROUPS = Path("/sys/fs/cgroup")


def status(field):
    """Bytes that the kernel says this process takes, or took at most; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


class Peak:
    """Largest private memory of this process, looked at between draws and by a thread."""

    def __init__(self):
        from threading import Event, Thread

        self.largest, self._ended = 0, Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._ended.wait(0.02):
            self.largest = max(self.largest, status("RssAnon"))

    def end(self):
        self._ended.set()
        self._thread.join()
        return self.largest


def parsed(parser, parts):
    """Return the arguments of a benchmark; in a process of its own, run one of its parts instead.

    `parts` are functions by name, of the folder, if there is one, and of numbers.
    """
    parser.add_argument("--folder", type=Path, help="where there is room for the rows")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        given = json.loads(args.child)
        part, folder = parts[given.pop("what")], given.pop("folder", None)
        print(json.dumps(part(folder and Path(folder), **given)))
        sys.exit()
    return args


def run(what, *, limit=None, **given):
    """Run a part of the benchmark in a process of its own, of so many bytes of memory at most."""
    said = json.dumps({"what": what, **given})
    command = [sys.executable, "-W", "ignore", sys.argv[0], "--child", said]
    group = control_group(limit) if limit else None

    def enter():
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, preexec_fn=enter)
        if done.returncode:
            sys.exit(f"{what} ended with {done.returncode}")
    finally:
        if group:
            group.rmdir()
    return json.loads(done.stdout.splitlines()[-1])


def control_group(limit):
    """Make a group of processes whose memory, with the pages of files, is limited."""
    first = GROUPS / "memory"
    group = (first if first.is_dir() else GROUPS) / f"on_disk_{os.getpid()}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if first.is_dir() else "memory.max"
        (group / name).write_text(str(limit))
    except OSError as error:
        sys.exit(f"Memory is limited by a control group, and {group} cannot be made: {error}")
    return group
