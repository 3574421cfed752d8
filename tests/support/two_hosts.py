"""Code in two processes of two virtual devices each, joined by jax.distributed over gloo: the hosts of a small pod."""

import os
import subprocess
import sys

from processes import SECONDS, compiler_flags, free_port

JOIN = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
port, host, *arguments = sys.argv[1:]
host = int(host)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, host, heartbeat_timeout_seconds=60)
"""
LEAVE = """
jax.distributed.shutdown()
"""


def run_on_two_hosts(code: str, *arguments: str) -> list[str]:
    """Run `code`, which finds `host` (0 or 1) and `arguments`, on both hosts; return what each of them printed."""
    port = str(free_port())
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN + code + LEAVE, port, host, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XLA_FLAGS": compiler_flags(), "JAX_PLATFORMS": "cpu"},
        )
        for host in "01"
    ]
    try:
        said = [host.communicate(timeout=SECONDS) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert [host.returncode for host in hosts] == [0, 0], "\n".join(part for parts in said for part in parts)
    return [printed for printed, _ in said]
