"""Makes the tars in this folder, each packed by xz but one, and `expected.json`: their samples as webdataset reads them,
undecoded.

Made with Python 3.11 (tarfile), GNU tar 1.34, webdataset 1.0.2 and NumPy 2.4:

    python3.11 -m venv /tmp/v && /tmp/v/bin/pip install webdataset==1.0.2 && /tmp/v/bin/python make.py
"""

import io
import json
import lzma
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import webdataset

HERE = Path(__file__).parent
LONG = "a/" + "folder-of-a-long-name/" * 8
NAMES = ("0001", "train/0002", f"{LONG}0003", "x" * 140, "ümläut/0004")


def samples() -> list[dict[str, Any]]:
    return [
        {
            "__key__": key,
            "txt": f"text {n} é",
            "cls": n,
            "json": {"n": n, "of": [1, 2]},
            "npy": np.arange(n, dtype=np.int32),
            "bin": b"\0\1" * n,
        }
        for n, key in enumerate(NAMES)
    ]


def by_webdataset() -> None:
    with webdataset.TarWriter(str(HERE / "writer.tar"), mtime=0, format="PAX_FORMAT") as writer:
        for sample in samples():
            writer.write(sample)
    with webdataset.TarWriter(str(HERE / "writer.tar.gz"), mtime=0, compress=True) as writer:
        for sample in samples()[:2]:
            writer.write(sample)
    with webdataset.ShardWriter(str(HERE / "shard-%02d.tar"), maxcount=1, mtime=0, verbose=0) as shards:
        for sample in samples()[:2]:
            shards.write(sample)


def by_tarfile() -> None:
    for name, form in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        with tarfile.open(HERE / f"tarfile-{name}.tar", "w", format=form) as tar:
            for key in NAMES:
                if name == "ustar" and len(key) == 140:
                    continue
                for extension, content in (("TXT", key.encode()), ("seg.json", b"[1]"), ("empty", b"")):
                    info = tarfile.TarInfo(f"{key}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))


def by_gnu_tar() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for key in NAMES:
            for extension in ("txt", "seg.png", "Json"):
                path = Path(folder, f"{key}.{extension}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'"{key[-4:]}.{extension}"')
        Path(folder, "README").write_text("no sample")
        Path(folder, "train/link.txt").symlink_to("0002.txt")
        for form in ("v7", "oldgnu", "gnu", "ustar", "posix"):
            names = [
                f"./{key}.{extension}"
                for key in NAMES
                if form not in ("v7", "ustar") or len(key) < 90
                for extension in ("txt", "seg.png", "Json")
            ]
            command = [
                "tar",
                "-cf",
                str(HERE / f"gnu-tar-{form}.tar"),
                f"--format={form}",
                "--mtime=@0",
                "--owner=0",
                "--group=0",
                "-b1",
            ]
            subprocess.run([*command, "./train/link.txt", "./README", *names, "--no-recursion", "./train"], cwd=folder, check=True)


def main() -> None:
    for old in HERE.glob("*.tar*"):
        old.unlink()
    by_webdataset()
    by_tarfile()
    by_gnu_tar()
    expected = {}
    for path in sorted((*HERE.glob("*.tar"), *HERE.glob("*.gz"))):
        expected[path.name] = [
            {
                key: value if key == "__key__" else value.decode("latin-1")
                for key, value in sample.items()
                if key not in ("__url__", "__local_path__")
            }
            for sample in webdataset.WebDataset(str(path), shardshuffle=False)
        ]
    for path in HERE.glob("*.tar"):
        path.with_suffix(".tar.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
