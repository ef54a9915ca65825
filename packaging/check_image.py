#!/usr/bin/env python3
"""Checks the Dockerfile and compose.yaml, without an engine of containers.

    packaging/check_image.py              lints both
    packaging/check_image.py PACKAGES     also runs the image, as root: with the .deb of this directory, which `make dist`
                                          fills, the steps of the last stage in a new Debian that debootstrap makes; then
                                          the commands of both files with the user, file systems and capabilities that
                                          compose.yaml gives, but its ulimits. Of the first stage it only resolves the Debian
                                          packages.

All mounts and processes end with the namespaces that they are in. Needs Python 3.11 or later.
"""

import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE, COMPOSE = ROOT / "Dockerfile", ROOT / "compose.yaml"
START_TIMEOUT = 120
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROXIES = {name: os.environ[name] for name in ("http_proxy", "https_proxy", "no_proxy") if name in os.environ}


def say(text):
    print(f"check_image.py: {text}", file=sys.stderr, flush=True)


def die(text):
    sys.exit(f"packaging/check_image.py: {text}")


def lint():
    """Lints both files. Returns the only service of compose.yaml."""
    command = [ROOT / "tests/hadolint.sh"]
    hadolint = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    # Debian's archive keeps no old versions of packages, so none are pinned.
    if subprocess.run([hadolint, "--ignore", "DL3008", DOCKERFILE]).returncode:
        die("hadolint refuses the Dockerfile, see above")
    sys.path.insert(0, str(hadolint.parent.parent))
    from compose_spec import PyCompose

    try:
        compose = PyCompose.from_yaml(COMPOSE.read_text())
        compose.validate()
    except ValueError as error:
        die(f"compose.yaml: {error}")
    (service,) = compose.to_dict()["services"].values()
    return service


def stages():
    """The stages of the Dockerfile: for each, its instructions with their arguments."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\n", " ", text)
    stages = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, arguments = line.split(None, 1)
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, arguments))
    return stages


def make_image(root, packages):
    """Runs the steps of the last stage in `root`. Returns its settings, by the names of instructions."""
    (build, last) = stages()
    settings = {"ENV": {"PATH": PATHS}}

    def step(script):
        say(f"RUN {script}")
        environment = [f"{name}={value}" for name, value in (settings["ENV"] | PROXIES).items()]
        chroot = ["chroot", root, "/usr/bin/env", "-i", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", *environment]
        if subprocess.run([*chroot, "/bin/sh", "-c", script], stdout=subprocess.DEVNULL).returncode:
            die("this step failed")

    for name, arguments in last:
        if name == "FROM":
            base = re.fullmatch(r"debian:(\w+)-slim", arguments) or die(f"no way to make {arguments} is known here")
            say(f"making a Debian ({base[1]})")
            log = subprocess.run(
                ["debootstrap", "--variant=minbase", base[1], root], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if log.returncode:
                die(f"debootstrap failed: {log.stdout[-500:]}")
            os.chmod(root, 0o755)
            shutil.copy("/etc/resolv.conf", root / "etc")
            subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
            # The base of the first stage is of the same release.
            installs = re.findall(r"apt-get install [^&]*", " ".join(arguments for _, arguments in build))
            step(f"apt-get update && {' && '.join(f'{install} --simulate' for install in installs)}")
        elif name == "RUN":
            # One mount: the packages of the first stage.
            mount = re.match(r"--mount=type=bind,from=build,source=(\S+),target=(\S+)\s+", arguments)
            if mount:
                target = root / mount[2].lstrip("/")
                target.mkdir()
                subprocess.run(["mount", "--bind", packages, target], check=True)
            step(arguments[mount.end() if mount else 0 :])
            if mount:
                subprocess.run(["umount", target], check=True)
                target.rmdir()
        elif name == "ENV":
            settings["ENV"] |= dict(word.split("=", 1) for word in shlex.split(arguments))
        elif name == "HEALTHCHECK":
            settings[name] = json.loads(re.search(r"CMD (\[.*)", arguments)[1])
        elif name in ("ENTRYPOINT", "CMD", "VOLUME"):
            settings[name] = json.loads(arguments)
        elif name in ("USER", "EXPOSE", "STOPSIGNAL"):
            settings[name] = arguments
        else:
            die(f"cannot run the instruction {name}")
    return settings


def enter_network():
    """Gives this process a network of its own, with nothing but a loopback interface."""
    new_network = 0x40000000
    if ctypes.CDLL(None, use_errno=True).unshare(new_network):
        die(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    set_flags, up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", up))


def mount_file_systems(root, settings, service):
    """Makes the file system read-only, but for volumes and those in memory."""
    if not service.get("read_only"):
        die("compose.yaml: the service is not read_only")
    volumes = [volume.split(":")[1] for volume in service["volumes"]]
    if sorted(volumes) != sorted(settings["VOLUME"]):
        die(f"compose.yaml has volumes at {volumes}, the Dockerfile at {settings['VOLUME']}")
    for path in ["/", *volumes]:
        place = root / path.lstrip("/")
        subprocess.run(["mount", "--bind", place, place], check=True)
    for entry in service["tmpfs"]:
        path, _, options = entry.partition(":")
        options = ",".join(filter(None, ["noexec,nosuid,nodev", options]))
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", root / path.lstrip("/")], check=True)
    # `root` was bound over itself after /proc was mounted.
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)


def run_container(root, settings, service, arguments):
    """Starts the image with these arguments, asks it, and stops it."""
    if service["cap_drop"] != ["ALL"] or service["security_opt"] != ["no-new-privileges:true"]:
        die("compose.yaml: expected cap_drop: [ALL] and no-new-privileges")
    user, group = settings["USER"].split(":")
    environment = [f"{name}={value}" for name, value in settings["ENV"].items()]
    drop = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    inside = ["chroot", root, *drop, "env", "-i", *environment]
    say(shlex.join(settings["ENTRYPOINT"] + arguments))
    server = subprocess.Popen([*inside, *settings["ENTRYPOINT"], *arguments])
    started = time.monotonic()
    while subprocess.run([*inside, *settings["HEALTHCHECK"]], capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() - started > START_TIMEOUT:
            die(f"the server is not healthy; its exit status is {server.poll()}")
        time.sleep(0.2)
    (port,) = {settings["EXPOSE"], *(port.rsplit(":", 1)[1] for port in service["ports"])}
    body = {"messages": [{"role": "user", "content": "What is 12+7?"}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with urllib.request.urlopen(url, json.dumps(body).encode(), START_TIMEOUT) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    if answer != "19":
        die(f"the answer is {answer!r}, expected 19")
    server.send_signal(signal.Signals[settings["STOPSIGNAL"]])
    units = re.findall(r"(\d+)([ms])", service["stop_grace_period"])
    grace_period = sum(int(number) * {"m": 60, "s": 1}[unit] for number, unit in units)
    if code := server.wait(grace_period):
        die(f"the exit status is {code}, expected 0")


def run(packages, root):
    service = lint()
    if len(list(packages.glob("corral_*.deb"))) != 1:
        die(f"expected one corral_*.deb in {packages}; run 'make dist'")
    settings = make_image(root, packages)
    enter_network()
    mount_file_systems(root, settings, service)
    for arguments in (settings["CMD"], service["command"]):
        run_container(root, settings, service, arguments)
    say("the image answers")


def main(packages, *root):
    packages = Path(packages).resolve()
    if root:
        return run(packages, Path(*root))
    if os.getuid():
        die("this needs root, for debootstrap and chroot")
    if not shutil.which("debootstrap"):
        die("debootstrap is missing; install it with 'apt-get install debootstrap'")
    # Outside of the namespaces nothing is ever mounted in this directory.
    with tempfile.TemporaryDirectory() as root:
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        sys.exit(subprocess.run([*namespaces, sys.executable, __file__, packages, root]).returncode)


if __name__ == "__main__":
    main(*sys.argv[1:]) if sys.argv[1:] else lint()
