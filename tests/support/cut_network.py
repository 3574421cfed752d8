"""Two hosts in network namespaces of their own, between which packets are dropped once a file exists.

`unshare --net --mount python cut_network.py FILE HOST_0_LOG HOST_1_LOG COMMAND…` prints the exit codes of both and the
seconds from the cut to their ends, as JSON.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def entered(process: int) -> tuple[str, ...]:
    return ("nsenter", f"--target={process}", "--net", "--mount")


def connect(there: tuple[str, ...], other: int) -> None:
    """Lay a cable between this namespace and that of process `other`; each knows itself by its end of it."""
    run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
    run("ip", "link", "set", "far", "netns", str(other))
    for place, device, address in (((), "near", ADDRESSES[0]), (there, "far", ADDRESSES[1])):
        names = pathlib.Path(f"{sys.argv[2]}.{device}.hosts")
        names.write_text(f"127.0.0.1 localhost\n{address} {os.uname().nodename}\n")
        run(*place, "mount", "--bind", str(names), "/etc/hosts")
        run(*place, "ip", "address", "add", f"{address}/24", "dev", device)
        run(*place, "ip", "link", "set", device, "up")
        run(*place, "ip", "link", "set", "lo", "up")


def start(place: tuple[str, ...], host: int) -> subprocess.Popen:
    job = {"JAX_COORDINATOR_ADDRESS": f"{ADDRESSES[0]}:12345", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(host)}
    with open(sys.argv[2 + host], "w") as log:
        return subprocess.Popen([*place, *sys.argv[4:]], env={**os.environ, **job}, stdout=log, stderr=log)


def main() -> None:
    other = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "10000"])
    hosts: list[subprocess.Popen] = []
    try:
        while os.readlink(f"/proc/{other.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.02)
        there = entered(other.pid)
        connect(there, other.pid)
        hosts += [start((), 0), start(there, 1)]
        while not os.path.exists(sys.argv[1]):
            assert all(host.poll() is None for host in hosts), "a host ended before the cut"
            time.sleep(0.02)
        run("ip", "link", "set", "near", "down")
        cut = time.monotonic()
        codes = [host.wait() for host in hosts]
        print(json.dumps({"codes": codes, "seconds": time.monotonic() - cut}))
    finally:
        for process in (*hosts, other):
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
