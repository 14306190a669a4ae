"""Makes the archives beside this file and, from what Python's own tarfile reads in them, the list of their members.

Run it again only to add an archive: python3 make.py. Needs GNU tar for the sparse ones.
Each line of a list is: kind, offset of the first header, offset of the bytes, number of bytes, name (hex).
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = "deep/" * 40 + "file.txt"
SPLIT = "a" * 90 + "/" + "b" * 60 + ".bin"


def add(archive, name, content=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mtime = 1_700_000_000
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))


def fill(archive, *, long_names):
    add(archive, "folder", type=tarfile.DIRTYPE)
    add(archive, "0001.jpg", b"first " * 200)
    add(archive, "0001.cls", b"7")
    add(archive, "empty.bin")
    add(archive, "block.bin", b"x" * 512)
    add(archive, "./dotted.txt", b"with a dot in front")
    add(archive, "link.sym", type=tarfile.SYMTYPE, linkname="0001.jpg")
    add(archive, "link.hard", type=tarfile.LNKTYPE, linkname="0001.jpg")
    if long_names:
        add(archive, LONG, b"deep")
        add(archive, "long.hard", type=tarfile.LNKTYPE, linkname=LONG)
        add(archive, "größe.txt", "Größe".encode())
    add(archive, "0001.cls", b"8 and last")


def python_archive(file, format, *, long_names=True, **options):
    with tarfile.open(os.path.join(HERE, file), "w", format=format, **options) as archive:
        fill(archive, long_names=long_names)
        if format == tarfile.USTAR_FORMAT:
            add(archive, SPLIT, b"split into prefix and name")


def v7_archive(file):
    """ustar without its magic, as the oldest writers did."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        add(archive, "old.txt", b"old")
        add(archive, "folder/", type=tarfile.AREGTYPE)
        add(archive, "older.txt", b"older")
    blocks = bytearray(raw.getvalue())
    for at in range(0, len(blocks), 512):
        if blocks[at + 257 : at + 262] == b"ustar":
            blocks[at + 257 : at + 512] = bytes(255)
            blocks[at + 148 : at + 156] = b" " * 8
            blocks[at + 148 : at + 156] = b"%06o\0 " % sum(blocks[at : at + 512])
    write(file, blocks)


def base256_archive(file):
    """A small member whose size is written in base 256."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        add(archive, "b256.bin", b"y" * 700)
        add(archive, "after.bin", b"z")
    blocks = bytearray(raw.getvalue())
    blocks[124:136] = b"\x80" + (700).to_bytes(11, "big")
    blocks[148:156] = b" " * 8
    blocks[148:156] = b"%06o\0 " % sum(blocks[:512])
    write(file, blocks)


def pax_size_archive(file):
    """The header says nothing about the size; PAX does, as for members of more than 8 GiB."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "big.bin", b"y" * 700, pax_headers={"size": "700"})
        add(archive, "after.bin", b"z")
    blocks = bytearray(raw.getvalue())
    blocks[1024 + 124 : 1024 + 136] = b"00000000000\0"
    blocks[1024 + 148 : 1024 + 156] = b" " * 8
    blocks[1024 + 148 : 1024 + 156] = b"%06o\0 " % sum(blocks[1024:1536])
    write(file, blocks)


def sparse_archive(file, format):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "holes.bin"), "wb") as holes:
            for place in range(0, 8):
                holes.seek(place * 1_000_000)
                holes.write(b"data")
        with open(os.path.join(folder, "after.bin"), "wb") as after:
            after.write(b"after")
        command = ["tar", "--sparse", f"--format={format}", "--owner=0", "--group=0", "--mtime=@1700000000"]
        command += ["-C", folder, "-cf", os.path.join(HERE, file), "holes.bin", "after.bin"]
        subprocess.run(command, check=True)


def write(file, content):
    with open(os.path.join(HERE, file), "wb") as out:
        out.write(content)


def kind(member):
    if member.issparse():
        return "sparse"
    if member.isreg():
        return "file"
    if member.islnk():
        return "link"
    return "folder" if member.isdir() else "other"


def list_members(file):
    lines = []
    with tarfile.open(os.path.join(HERE, file), encoding="utf-8") as archive:
        for member in archive:
            what = kind(member)
            # Python gives a sparse file its size with the holes; the bytes in the archive are another matter.
            size = "-" if what == "sparse" else (member.size if what == "file" else 0)
            name = member.name.encode("utf-8", "surrogateescape").hex()
            lines.append(f"{what} {member.offset} {member.offset_data} {size} {name}\n")
    with open(os.path.join(HERE, file.replace(".tar", ".list")), "w") as out:
        out.writelines(lines)


def main():
    python_archive("ustar.tar", tarfile.USTAR_FORMAT, long_names=False)
    python_archive("gnu.tar", tarfile.GNU_FORMAT)
    python_archive("pax.tar", tarfile.PAX_FORMAT)
    python_archive("pax-global.tar", tarfile.PAX_FORMAT, pax_headers={"comment": "for all", "mtime": "1.5"})
    v7_archive("v7.tar")
    base256_archive("base256.tar")
    pax_size_archive("pax-size.tar")
    sparse_archive("sparse-gnu.tar", "gnu")
    sparse_archive("sparse-pax.tar", "posix")
    for file in sorted(os.listdir(HERE)):
        if file.endswith(".tar"):
            list_members(file)


if __name__ == "__main__":
    sys.exit(main())
