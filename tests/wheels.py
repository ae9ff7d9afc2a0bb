"""Wheels without modules. A copy of this file is the build backend of a project, which needs nothing but Python."""

import base64
import hashlib
import zipfile
from pathlib import Path


def file_name(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def wheel(folder: Path, name: str, version: str, requires: str = "") -> str:
    """Write a wheel without modules; return its line in a lock."""
    about = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {
        f"{about}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{file},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for file, text in contents.items()
    ]
    contents[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""])
    path = folder / file_name(name, version)
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def build_editable(folder: str, settings: object = None, metadata: object = None) -> str:
    """Build the project, as pip asks a backend to."""
    wheel(Path(folder), "reread", "0")
    return file_name("reread", "0")
