# SPDX-License-Identifier: MIT
"""The QEMU image boots and gives the golden tokens, inside its sandbox and its memory plan.

    cd BUILDROOT && PYTHONPATH=EXTERNAL/support/testing \
        support/testing/run-tests -d DL -o OUT -k colibri_tests.test_colibri

COLIBRI_MODELS names the folder with tiny.colibri, tiny.golden.json and colibri-model.hash
(default: build/models of the project).
"""

import json
import os
import shlex

import infra.basetest

EXTERNAL = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
MODELS = os.environ.get("COLIBRI_MODELS", os.path.join(EXTERNAL, "..", "build", "models"))
MODEL = "/models/tiny.colibri"
SERVER = "/run/colibri/colibri.sock"


def defconfig():
    """Our defconfig with the small model alone."""
    name = os.path.join(EXTERNAL, "configs", "colibri_qemu_aarch64_defconfig")
    with open(name) as file:
        lines = [line.strip() for line in file if "COLIBRI_MODEL_NAMES" not in line]
    lines.append('BR2_PACKAGE_COLIBRI_MODEL_NAMES="tiny"')
    lines.append(f'BR2_PACKAGE_COLIBRI_MODEL_DIR="{MODELS}"')
    lines.append(f'BR2_PACKAGE_COLIBRI_MODEL_HASH_FILE="{MODELS}/colibri-model.hash"')
    return "\n".join(lines) + "\n"


class TestColibriAarch64(infra.basetest.BRTest):
    br2_external = [EXTERNAL]
    config = defconfig()

    def boot(self):
        images = os.path.join(self.builddir, "images")
        disk = os.path.join(images, "disk.img")
        self.emulator.boot(
            arch="aarch64",
            kernel=os.path.join(images, "Image"),
            kernel_cmdline=["console=ttyAMA0", "root=PARTLABEL=root", "ro"],
            options=["-M", "virt", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "512", "-nic", "none",
                     "-drive", f"if=none,id=disk,format=raw,readonly=on,file={disk}",
                     "-device", "virtio-blk-device,drive=disk"])
        self.emulator.login(timeout=180)

    def output(self, command, timeout=120):
        lines, code = self.emulator.run(command, timeout=timeout)
        self.assertEqual(code, 0, f"{command}: {lines}")
        return "\n".join(lines)

    def test_run(self):
        self.boot()
        with open(os.path.join(MODELS, "tiny.golden.json")) as file:
            golden = json.load(file)
        case = next(c for c in golden["cases"]
                    if c["kv"] == "f16" and c.get("prompt") and not c.get("chat"))

        # The service, which nobody but the init script has started, gives exactly the golden answer.
        ask = f"colibrictl ask {SERVER} -p {shlex.quote(case['prompt'])} --tokens {case['n']} --json"
        answer = [json.loads(line) for line in self.output(ask).splitlines() if line.startswith("{")]
        self.assertEqual("".join(line.get("text", "") for line in answer), case["text"])
        self.assertEqual(answer[-1]["logits_sha256"], case["logits_sha256"])

        # Sandbox, locked memory, user of its own.
        status = self.output("cat /proc/$(pidof colibrictl)/status")
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        self.assertEqual(fields["Seccomp"].strip(), "2")
        self.assertEqual(fields["NoNewPrivs"].strip(), "1")
        self.assertEqual(int(fields["CapEff"], 16), 0)
        self.assertGreater(int(fields["VmLck"].split()[0]), 0)
        self.assertNotEqual(fields["Uid"].split()[0], "0")

        # Health gate and memory plan.
        health = json.loads(self.output("cat /run/colibri/health.json"))
        self.assertEqual(health["exit_code"], 0)
        self.assertEqual(health["root"], golden["root"])
        self.assertGreater(health["peak_bytes"], 0)
        self.assertLessEqual(health["peak_bytes"], health["plan_bytes"])
        checks = {check["name"]: check["status"] for check in health["checks"]}
        for name in ("model", "golden", "lock", "seccomp", "read-ahead"):
            self.assertEqual(checks[name], "ok", name)

        # What the build forces, and what cannot be written.
        info = self.output(f"colibrictl info {MODEL}")
        for name in ("SECURE_MODE", "NO_LOGGING", "VERIFY_MODEL_HASH", "RESTRICTED_SYSCALLS"):
            self.assertIn(f"COLIBRI_{name}", info)
        for place in ("/", "/models"):
            _, code = self.emulator.run(f"touch {place}/new 2>/dev/null")
            self.assertNotEqual(code, 0, f"{place} can be written")
        self.assertRunOk("zcat /proc/config.gz | grep -x CONFIG_SECCOMP_FILTER=y")
