# SPDX-License-Identifier: MIT
"""Generated from configs/boards/*.toml by engine/spec/generate_boards.py; do not edit."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

BOARDS: dict[str, dict[str, Any]] = {
    "imx8m-plus": {
        "schema": 1,
        "name": "imx8m-plus",
        "description": "NXP i.MX 8M Plus (evaluation kit and modules)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 4096,
            "ram_sizes_mib": [1024, 2048, 4096, 6144],
            "bandwidth": {
                "read_mbps": [2000.0, 3800.0, 5000.0, 5500.0],
                "basis": "estimate",
                "source": "LPDDR4-4000, 32 bit, 16 GB/s nominal; memcpy 2.7 GB/s with one thread (sbc-bench results/4hx0.txt); Cortex-A53 cores of other boards read 1.7 to 2.2 GB/s each",
            },
        },
        "cpu": {
            "cores": 4,
            "core": "Cortex-A53 1800 MHz",
            "features": ["asimd", "aes", "sha2", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 3.0,
                "int8": 3.2,
                "f32": 1.5,
            },
            "prompt_gmacs": {
                "int4": 3.3,
                "int8": 2.7,
                "f32": 1.5,
            },
            "hash_mbps": 640,
            "step_us": 6.0,
            "basis": "estimate",
            "source": "neon kernels: cycles of llvm-mca (engine/native/tests/mca.py, Cortex-A53) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 2.38 cycles per byte (table in OpenSSL's sha512-armv8.pl: hardware, Cortex-A53), less 15 %",
        },
        "storages": {
            "emmc": {
                "read_mbps": 250.0,
                "request_us": 300.0,
                "basis": "estimate",
                "source": "HS400 bus, 400 MB/s nominal; parts on boards commonly read 250 to 300 MB/s",
            },
            "sd": {
                "read_mbps": 80.0,
                "request_us": 600.0,
                "basis": "estimate",
                "source": "SDR104 bus of 104 MB/s less protocol",
            },
        },
    },
    "jetson-orin-nano": {
        "schema": 1,
        "name": "jetson-orin-nano",
        "description": "NVIDIA Jetson Orin Nano, processor cores only",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 8192,
            "ram_sizes_mib": [4096, 8192],
            "bandwidth": {
                "read_mbps": [9600.0, 17000.0, 22000.0, 26000.0, 28000.0, 28000.0],
                "basis": "estimate",
                "source": "LPDDR5, 128 bit, 68 GB/s nominal, shared with the GPU; sbc-bench results (github.com/ThomasKaiser/sbc-bench), memchr scan with one thread: 9.6 to 10.0 GB/s; growth with threads guessed",
            },
        },
        "cpu": {
            "cores": 6,
            "core": "Cortex-A78AE 1510 MHz",
            "features": ["asimd", "asimddp", "aes", "sha2", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 14.9,
                "int8": 21.1,
                "f32": 3.9,
            },
            "prompt_gmacs": {
                "int4": 18.7,
                "int8": 19.9,
                "f32": 3.9,
            },
            "hash_mbps": 560,
            "step_us": 2.0,
            "basis": "estimate",
            "source": "dotprod kernels: cycles of llvm-mca (engine/native/tests/mca.py, Neoverse N1, the nearest core that LLVM models) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 2.31 cycles per byte (table in OpenSSL's sha512-armv8.pl: hardware, Cortex-A57), less 15 %",
        },
        "storages": {
            "nvme": {
                "read_mbps": 2500.0,
                "request_us": 80.0,
                "basis": "estimate",
                "source": "PCIe 3.0 x4, 3.9 GB/s nominal; request time guessed",
            },
            "sd": {
                "read_mbps": 80.0,
                "request_us": 600.0,
                "basis": "estimate",
                "source": "SDR104 bus of 104 MB/s less protocol",
            },
        },
    },
    "qemu-aarch64": {
        "schema": 1,
        "name": "qemu-aarch64",
        "description": "QEMU virt machine, AArch64, software emulation",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 1024,
            "ram_sizes_mib": [256, 512, 1024, 1536, 2048],
            "bandwidth": {
                "read_mbps": [5000.0, 10000.0],
                "basis": "estimate",
                "source": "a fraction of what a host reads; the emulated instructions are the limit",
            },
        },
        "cpu": {
            "cores": 4,
            "features": ["asimd", "asimddp", "i8mm", "sha2"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 0.18,
                "int8": 0.18,
                "f32": 0.18,
            },
            "prompt_gmacs": {
                "int4": 0.18,
                "int8": 0.18,
                "f32": 0.18,
            },
            "hash_mbps": 35,
            "step_us": 50.0,
            "basis": "measured",
            "source": "docs/benchmarks.md: 1.7 tokens/s of 214 million weights with 2 emulated cores; hashes: verifying the demo model in user-mode emulation; step_us guessed; another host gives another figure",
        },
        "storages": {
            "virtio-blk": {
                "read_mbps": 500.0,
                "request_us": 500.0,
                "basis": "estimate",
                "source": "an emulated disk in the page cache of the host",
            },
        },
    },
    "raspberry-pi-4": {
        "schema": 1,
        "name": "raspberry-pi-4",
        "description": "Raspberry Pi 4 Model B (BCM2711)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 4096,
            "ram_sizes_mib": [1024, 2048, 4096, 8192],
            "bandwidth": {
                "read_mbps": [4000.0, 5000.0, 5200.0, 5200.0],
                "basis": "estimate",
                "source": "LPDDR4-3200, 32 bit, 12.8 GB/s nominal; STREAM copy 5.5 GB/s (sci-pi.org.uk/bench/stream.html); reads with one thread 4.1 GB/s (sbc-bench, memchr); growth with threads guessed",
            },
        },
        "cpu": {
            "cores": 4,
            "core": "Cortex-A72 1800 MHz",
            "features": ["asimd", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 10.0,
                "int8": 9.3,
                "f32": 3.1,
            },
            "prompt_gmacs": {
                "int4": 10.5,
                "int8": 10.0,
                "f32": 3.1,
            },
            "hash_mbps": 130,
            "step_us": 4.0,
            "basis": "estimate",
            "source": "neon kernels: cycles of llvm-mca (engine/native/tests/mca.py, Cortex-A72) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 11.6 cycles per byte (table in OpenSSL's sha512-armv8.pl: software, Cortex-A57), less 15 %",
        },
        "storages": {
            "sd": {
                "read_mbps": 43.0,
                "request_us": 800.0,
                "basis": "estimate",
                "source": "DDR50 bus of 50 MB/s less protocol; request time guessed",
            },
            "usb-ssd": {
                "read_mbps": 350.0,
                "request_us": 300.0,
                "basis": "published",
                "source": "362 MB/s through USB 3 to a SATA disk (hdparm on a Raspberry Pi 5, github.com/TheRemote/PiBenchmarks issue 34); request time guessed",
            },
        },
    },
    "raspberry-pi-5": {
        "schema": 1,
        "name": "raspberry-pi-5",
        "description": "Raspberry Pi 5 (BCM2712)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 8192,
            "ram_sizes_mib": [2048, 4096, 8192, 16384],
            "bandwidth": {
                "read_mbps": [9500.0, 10000.0, 10000.0, 10000.0],
                "basis": "estimate",
                "source": "LPDDR4X-4267, 32 bit, 17 GB/s nominal; memset 9.8 to 10 GB/s, sbc-bench results (github.com/ThomasKaiser/sbc-bench), memchr scan with one thread: 11.9 to 17.4 GB/s, which caches flatter",
            },
        },
        "cpu": {
            "cores": 4,
            "core": "Cortex-A76 2400 MHz",
            "features": ["asimd", "asimddp", "aes", "sha2", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 23.7,
                "int8": 33.5,
                "f32": 6.1,
            },
            "prompt_gmacs": {
                "int4": 29.7,
                "int8": 31.7,
                "f32": 6.1,
            },
            "hash_mbps": 880,
            "step_us": 2.0,
            "basis": "estimate",
            "source": "dotprod kernels: cycles of llvm-mca (engine/native/tests/mca.py, Neoverse N1, which stands for Cortex-A76) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 2.31 cycles per byte (table in OpenSSL's sha512-armv8.pl: hardware, Cortex-A57), less 15 %",
        },
        "storages": {
            "sd": {
                "read_mbps": 88.0,
                "request_us": 500.0,
                "basis": "estimate",
                "source": "SDR104 bus of 104 MB/s less protocol; request time guessed",
            },
            "nvme-gen3": {
                "read_mbps": 880.0,
                "request_us": 100.0,
                "basis": "published",
                "source": "about 900 MB/s with PCIe gen 3 x1 switched on, 730 MB/s with iozone at 1 MB (github.com/geerlingguy/raspberry-pi-pcie-devices issues 559 and 631); request time guessed",
            },
            "nvme-gen2": {
                "read_mbps": 440.0,
                "request_us": 100.0,
                "basis": "estimate",
                "source": "PCIe gen 2 x1, the default: 500 MB/s less protocol; request time guessed",
            },
        },
    },
    "raspberry-pi-zero-2-w": {
        "schema": 1,
        "name": "raspberry-pi-zero-2-w",
        "description": "Raspberry Pi Zero 2 W (RP3A0, BCM2710A1)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 512,
            "ram_sizes_mib": [512],
            "bandwidth": {
                "read_mbps": [1500.0, 2000.0, 2200.0, 2200.0],
                "basis": "estimate",
                "source": "LPDDR2, 3.6 GB/s nominal; memcpy 1.3 and memset 1.6 GB/s at 1000 MHz (sbc-bench results/3E85.txt); growth with threads guessed",
            },
        },
        "cpu": {
            "cores": 4,
            "core": "Cortex-A53 1000 MHz",
            "features": ["asimd", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 1.7,
                "int8": 1.8,
                "f32": 0.85,
            },
            "prompt_gmacs": {
                "int4": 1.8,
                "int8": 1.5,
                "f32": 0.85,
            },
            "hash_mbps": 55,
            "step_us": 8.0,
            "basis": "estimate",
            "source": "neon kernels: cycles of llvm-mca (engine/native/tests/mca.py, Cortex-A53) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 15.5 cycles per byte (table in OpenSSL's sha512-armv8.pl: software, Cortex-A53), less 15 %",
        },
        "storages": {
            "sd": {
                "read_mbps": 22.0,
                "request_us": 1000.0,
                "basis": "estimate",
                "source": "high speed bus of 25 MB/s less protocol; request time guessed",
            },
        },
    },
    "rk3399": {
        "schema": 1,
        "name": "rk3399",
        "description": "Rockchip RK3399 (NanoPC-T4, Rock Pi 4)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 4096,
            "ram_sizes_mib": [1024, 2048, 4096],
            "bandwidth": {
                "read_mbps": [4000.0, 4200.0],
                "basis": "estimate",
                "source": "sbc-bench results (github.com/ThomasKaiser/sbc-bench), memchr scan with one thread: 4.3 to 7.1 GB/s on a Cortex-A72; the least of the boards is taken",
            },
        },
        "cpu": {
            "cores": 2,
            "core": "Cortex-A72 2000 MHz",
            "features": ["asimd", "aes", "sha2", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 11.1,
                "int8": 10.3,
                "f32": 3.4,
            },
            "prompt_gmacs": {
                "int4": 11.7,
                "int8": 11.2,
                "f32": 3.4,
            },
            "hash_mbps": 740,
            "step_us": 4.0,
            "basis": "estimate",
            "source": "neon kernels: cycles of llvm-mca (engine/native/tests/mca.py, Cortex-A72) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 2.31 cycles per byte (table in OpenSSL's sha512-armv8.pl: hardware, Cortex-A57), less 15 %",
        },
        "storages": {
            "emmc": {
                "read_mbps": 250.0,
                "request_us": 300.0,
                "basis": "estimate",
                "source": "HS400 bus, 400 MB/s nominal; parts on boards commonly read 250 to 300 MB/s",
            },
            "sd": {
                "read_mbps": 80.0,
                "request_us": 600.0,
                "basis": "estimate",
                "source": "SDR104 bus of 104 MB/s less protocol",
            },
            "nvme": {
                "read_mbps": 1300.0,
                "request_us": 100.0,
                "basis": "estimate",
                "source": "PCIe 2.1 x4, 2 GB/s nominal; request time guessed",
            },
        },
    },
    "rk3566": {
        "schema": 1,
        "name": "rk3566",
        "description": "Rockchip RK3566 (Quartz64, Radxa Zero 3W)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 4096,
            "ram_sizes_mib": [1024, 2048, 4096, 8192],
            "bandwidth": {
                "read_mbps": [2700.0, 4200.0, 4500.0, 4500.0],
                "basis": "estimate",
                "source": "sbc-bench results (github.com/ThomasKaiser/sbc-bench), memchr scan with one thread: 2.4 to 2.9 GB/s; growth with threads guessed",
            },
        },
        "cpu": {
            "cores": 4,
            "core": "Cortex-A55 1800 MHz",
            "features": ["asimd", "asimddp", "aes", "sha2", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 6.4,
                "int8": 4.6,
                "f32": 1.8,
            },
            "prompt_gmacs": {
                "int4": 4.2,
                "int8": 4.3,
                "f32": 1.8,
            },
            "hash_mbps": 640,
            "step_us": 5.0,
            "basis": "estimate",
            "source": "dotprod kernels: cycles of llvm-mca (engine/native/tests/mca.py, Cortex-A55) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 2.38 cycles per byte (table in OpenSSL's sha512-armv8.pl: hardware, Cortex-A53), less 15 %",
        },
        "storages": {
            "emmc": {
                "read_mbps": 180.0,
                "request_us": 300.0,
                "basis": "estimate",
                "source": "HS200 bus of 200 MB/s less protocol",
            },
            "sd": {
                "read_mbps": 80.0,
                "request_us": 600.0,
                "basis": "estimate",
                "source": "SDR104 bus of 104 MB/s less protocol",
            },
        },
    },
    "rk3588": {
        "schema": 1,
        "name": "rk3588",
        "description": "Rockchip RK3588 (Rock 5B, Orange Pi 5)",
        "arch": "aarch64",
        "memory": {
            "ram_mib": 8192,
            "ram_sizes_mib": [4096, 8192, 16384, 32768],
            "bandwidth": {
                "read_mbps": [14800.0, 18000.0, 18000.0, 18000.0],
                "basis": "published",
                "source": "sbc-bench results (github.com/ThomasKaiser/sbc-bench), memchr scan with one thread: 14.9 to 17.6 GB/s on a Cortex-A76; all cores 17 to 22 GB/s (turingpi.com, RK1 benchmarks), 18 taken",
            },
        },
        "cpu": {
            "cores": 4,
            "core": "Cortex-A76 2300 MHz",
            "features": ["asimd", "asimddp", "aes", "sha2", "crc32"],
        },
        "compute": {
            "decode_gmacs": {
                "int4": 22.7,
                "int8": 32.1,
                "f32": 5.9,
            },
            "prompt_gmacs": {
                "int4": 28.4,
                "int8": 30.3,
                "f32": 5.9,
            },
            "hash_mbps": 850,
            "step_us": 2.0,
            "basis": "estimate",
            "source": "dotprod kernels: cycles of llvm-mca (engine/native/tests/mca.py, Neoverse N1, which stands for Cortex-A76) x clock, less 15 % for caches; f32 and step_us guessed; SHA-256: 2.31 cycles per byte (table in OpenSSL's sha512-armv8.pl: hardware, Cortex-A57), less 15 %",
        },
        "storages": {
            "emmc": {
                "read_mbps": 250.0,
                "request_us": 300.0,
                "basis": "estimate",
                "source": "HS400 bus, 400 MB/s nominal; parts on boards commonly read 250 to 300 MB/s",
            },
            "sd": {
                "read_mbps": 80.0,
                "request_us": 600.0,
                "basis": "estimate",
                "source": "SDR104 bus of 104 MB/s less protocol",
            },
            "nvme": {
                "read_mbps": 3000.0,
                "request_us": 80.0,
                "basis": "estimate",
                "source": "PCIe 3.0 x4, 3.9 GB/s nominal; request time guessed",
            },
        },
    },
}
