"""Hosts in network namespaces of their own, joined by a switch that drops the packets of one once a file exists.

`unshare --net --mount python cut_network.py FILE HOST LOG,LOG,… COMMAND…` starts a host for each log, cuts off number
HOST, and prints the exit codes of all and the seconds from the cut to the last end, as JSON.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

PORT = 12345


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def new_namespace() -> subprocess.Popen:
    """Return a process that does nothing in namespaces of its own."""
    process = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "10000"])
    while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.02)
    return process


def entered(process: subprocess.Popen) -> tuple[str, ...]:
    return ("nsenter", f"--target={process.pid}", "--net", "--mount")


def connect(host: int, process: subprocess.Popen, log: str) -> None:
    """Lay a cable from the switch to the namespace of a host, which knows itself by its end of it."""
    run("ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "cable", "netns", str(process.pid))
    run("ip", "link", "set", f"port{host}", "master", "switch", "up")
    names = pathlib.Path(f"{log}.hosts")
    names.write_text(f"127.0.0.1 localhost\n{address(host)} {os.uname().nodename}\n")
    run(*entered(process), "mount", "--bind", str(names), "/etc/hosts")
    run(*entered(process), "ip", "address", "add", f"{address(host)}/24", "dev", "cable")
    run(*entered(process), "ip", "link", "set", "cable", "up")
    run(*entered(process), "ip", "link", "set", "lo", "up")


def start(host: int, hosts: int, process: subprocess.Popen, log: str) -> subprocess.Popen:
    job = {
        "JAX_COORDINATOR_ADDRESS": f"{address(0)}:{PORT}",
        "JAX_NUM_PROCESSES": str(hosts),
        "JAX_PROCESS_ID": str(host),
    }
    with open(log, "w") as file:
        return subprocess.Popen([*entered(process), *sys.argv[4:]], env={**os.environ, **job}, stdout=file, stderr=file)


def main() -> None:
    ready, lost, logs = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    spaces: list[subprocess.Popen] = []
    hosts: list[subprocess.Popen] = []
    try:
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "link", "set", "switch", "up")
        for host, log in enumerate(logs):
            spaces.append(new_namespace())
            connect(host, spaces[host], log)
        hosts += [start(h, len(logs), space, log) for h, (space, log) in enumerate(zip(spaces, logs, strict=True))]
        while not os.path.exists(ready):
            assert all(host.poll() is None for host in hosts), "a host ended before the cut"
            time.sleep(0.02)
        run("ip", "link", "set", f"port{lost}", "nomaster")  # both ends of the cable stay up: packets just get lost
        cut = time.monotonic()
        codes = [host.wait() for host in hosts]
        print(json.dumps({"codes": codes, "seconds": time.monotonic() - cut}))
    finally:
        for process in (*hosts, *spaces):
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
