"""Calls of Python on a directory: the output is compared with that on a local directory."""

import fcntl
import glob
import mmap
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading


def attempt(call, *args):
    try:
        return call(*args)
    except OSError as error:
        return error.errno


def work(number):
    for i in range(30):
        name = f"t{number}_{i}"
        with open(name, "w") as file:
            file.write(str(i))
        with open(name) as file:
            assert file.read() == str(i)
        os.stat(name)
        os.unlink(name)


def main(base):
    os.makedirs(base + "/a/b/c")
    os.chdir(base)
    print(os.getcwd() == base)
    for i in range(20):
        with open(f"a/f{i}", "w") as file:
            file.write("x" * i)
    print(sorted((r, sorted(d), sorted(f)) for r, d, f in os.walk(".")))
    with open("m", "wb") as file:
        file.write(b"abc" * 10000)
    with open("m", "r+b") as file:
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0:3] = b"XYZ"
            mapped.flush()
    print(open("m", "rb").read(6), os.path.getsize("m"))
    done = subprocess.run("cat a/f5; pwd; echo hi > sub; ls", shell=True, capture_output=True, cwd="a/..")
    print(done.stdout.decode().replace(base, "BASE"))
    with open("log", "w") as file:
        subprocess.run(["sh", "-c", "echo from child; ls a | wc -l"], stdout=file)
        file.write("parent\n")
    print(open("log").read())
    shutil.copytree("a", "a2")
    print(sorted(os.listdir("a2")) == sorted(os.listdir("a")))
    shutil.move("a2", "a3")
    shutil.rmtree("a3")
    print(os.path.exists("a3"), sorted(glob.glob("a/f1*")))
    with tempfile.NamedTemporaryFile(dir=".") as file:
        file.write(b"q" * 10)
        file.flush()
        print(os.path.getsize(file.name))
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print([name for name in os.listdir(".") if name.startswith("t")])
    with open("lk", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        code = (
            "import fcntl\n"
            "try: fcntl.lockf(open('lk','w'),fcntl.LOCK_EX|fcntl.LOCK_NB)\n"
            "except OSError as e: print('refused', e.errno)\n"
        )
        print(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
    for mode in ["delete", "wal"]:
        with sqlite3.connect("db." + mode) as base_file:
            base_file.execute("pragma journal_mode=" + mode)
            base_file.execute("create table t(a, b)")
            base_file.executemany("insert into t values(?,?)", [(i, str(i)) for i in range(500)])
            base_file.commit()
            print(base_file.execute("select sum(a), count(*) from t").fetchone())
        base_file.close()
    child = os.fork()
    if child == 0:
        with open("child", "w") as file:
            file.write("c")
        os._exit(0)
    os.waitpid(child, 0)
    print(open("child").read())
    fd = os.open("rw", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"0123456789")
    child = os.fork()
    if child == 0:
        os.lseek(fd, 2, 0)
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(fd, 3))
    os.ftruncate(fd, 5)
    print(os.fstat(fd).st_size)
    os.unlink("rw")
    print(os.fstat(fd).st_nlink, os.pread(fd, 5, 0))
    os.close(fd)
    os.symlink("a", "ln")
    print(os.readlink("ln"), os.path.realpath("ln/f1") == base + "/a/f1")
    print(attempt(os.mkdir, "a"), attempt(os.open, "nope/x", os.O_RDONLY), attempt(os.rmdir, "a"))
    print(attempt(os.open, "a", os.O_WRONLY), attempt(os.unlink, "none"), attempt(os.listdir, "m"))
    os.utime("m", (1, 2))
    os.chmod("m", 0o640)
    print(os.stat("m").st_mtime, os.stat("m").st_size, oct(os.stat("m").st_mode))
    os.setxattr("m", "user.a", b"1")
    print(os.listxattr("m"), os.getxattr("m", "user.a"))
    fd = os.open("a", os.O_RDONLY)
    print(sorted(os.listdir(fd))[:3], os.stat("f1", dir_fd=fd).st_size)
    os.close(fd)
    print(os.access("m", os.R_OK), os.statvfs(".").f_bsize > 0)
    with multiprocessing.Pool(3) as pool:
        print(pool.map(len, ["abc"] * 4))


if __name__ == "__main__":
    main(sys.argv[1])
