//! Directories with containers, shown as ordinary files: real tools on the mount.

use std::path::{Path, PathBuf};
use tatami_tests::command::{ask, program, run, shell, tatami_bin};

/// An overlay on a directory of its own, unmounted at the end.
struct Overlay {
    dir: tempfile::TempDir,
}

/// Runs a program as root without the right to pass over the modes of files.
const UNPRIVILEGED: &str = "setpriv --inh-caps=-dac_override,-dac_read_search \
                            --bounding-set=-dac_override,-dac_read_search";

impl Overlay {
    fn start() -> Overlay {
        Overlay::start_by(&mut tatami())
    }

    /// Starts an overlay whose process obeys the modes of files, as that of an ordinary user.
    fn start_unprivileged() -> Overlay {
        let mut tatami = program(&format!("{UNPRIVILEGED} {}", tatami_bin().display()));
        Overlay::start_by(&mut tatami)
    }

    fn start_by(tatami: &mut std::process::Command) -> Overlay {
        let dir = tempfile::tempdir().expect("a directory for the test");
        for name in ["below", "shown"] {
            std::fs::create_dir(dir.path().join(name)).expect("a directory for the test");
        }
        let overlay = Overlay { dir };
        run(tatami.arg("mount").arg("--overlay").arg(overlay.below("")).arg(overlay.shown("")));
        overlay
    }

    fn below(&self, name: &str) -> PathBuf {
        self.dir.path().join("below").join(name)
    }

    fn shown(&self, name: &str) -> PathBuf {
        self.dir.path().join("shown").join(name)
    }

    /// Makes `name` a container with these bytes.
    fn container(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.below(name), bytes).expect("a file below");
        run(tatami().args(["relayout", "--to", "container"]).arg(self.below(name)));
        assert!(self.below(name).is_dir());
    }

    fn shell(&self, script: &str) -> String {
        run(&mut shell(&self.shown(""), script)).out
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        ask(program("umount").arg("-l").arg(self.shown("")));
    }
}

fn tatami() -> std::process::Command {
    program(&tatami_bin().display().to_string())
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

fn same(path: &Path, expected: &[u8]) {
    let found = std::fs::read(path).expect("a file of the overlay");
    assert_eq!(found.len(), expected.len(), "{}", path.display());
    assert!(found == expected, "{} has other bytes", path.display());
}

#[test]
fn a_container_is_one_ordinary_file() {
    let overlay = Overlay::start();
    let data = bytes(3_000_000, 1);
    overlay.container("data", &data);
    std::fs::write(overlay.below("copy"), &data).expect("a file below");
    let listed = overlay.shell("ls; stat -c '%F %s %h %a' data; cmp data copy; test -f data");
    assert_eq!(listed, "copy\ndata\nregular file 3000000 1 644\n");
    same(&overlay.shown("data"), &data);
    // Mapped, as many tools read.
    let said = overlay.shell(
        "python3 -c 'import mmap,hashlib; f=open(\"data\",\"rb\"); \
         m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); print(hashlib.md5(m).hexdigest())'; \
         md5sum < copy",
    );
    let sums: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(sums[0], sums[1]);
    let refused = ask(&mut shell(&overlay.shown(""), "rmdir data"));
    assert!(refused.err.contains("Not a directory"), "{refused:?}");
    let refused = ask(&mut shell(&overlay.shown(""), "ls data/"));
    assert!(refused.err.contains("Not a directory"), "{refused:?}");
}

#[test]
fn a_container_is_written_like_any_file() {
    let overlay = Overlay::start();
    let mut data = bytes(1_000_000, 2);
    overlay.container("data", &data);
    let patch = bytes(70_000, 3);
    std::fs::write(overlay.below("patch"), &patch).expect("a file below");
    overlay.shell("dd if=patch of=data conv=notrunc bs=7000 seek=11 status=none");
    data[77_000..147_000].copy_from_slice(&patch);
    same(&overlay.shown("data"), &data);
    overlay.shell("cat patch >> data");
    data.extend(&patch);
    same(&overlay.shown("data"), &data);
    overlay.shell("truncate -s 500000 data");
    data.truncate(500_000);
    same(&overlay.shown("data"), &data);
    overlay.shell("truncate -s 600000 data; sync data");
    data.resize(600_000, 0);
    same(&overlay.shown("data"), &data);
    // The layout below changes; the bytes stay the same.
    run(tatami().arg("relayout").arg(overlay.below("data")));
    same(&overlay.below("data"), &data);
    same(&overlay.shown("data"), &data);
    overlay.container("other", &data);
    overlay.shell("cp patch other");
    same(&overlay.shown("other"), &patch);
}

#[test]
fn names_are_changed_like_those_of_any_file() {
    let overlay = Overlay::start();
    let (one, two) = (bytes(10_000, 4), bytes(20_000, 5));
    overlay.container("one", &one);
    overlay.container("two", &two);
    std::fs::write(overlay.below("plain"), b"plain").expect("a file below");
    overlay.shell("mkdir -p dir/deep; mv one dir/deep/first; ls dir/deep");
    same(&overlay.shown("dir/deep/first"), &one);
    overlay.shell("mv dir renamed");
    same(&overlay.shown("renamed/deep/first"), &one);
    // A rename over a container, over a file, and of a file over a container.
    overlay.shell("mv renamed/deep/first two");
    same(&overlay.shown("two"), &one);
    overlay.shell("mv two plain");
    same(&overlay.shown("plain"), &one);
    overlay.shell("echo new > text; mv text plain; cat plain; ln -s plain link; cat link");
    overlay.container("gone", &two);
    let left = overlay.shell("rm gone plain link; rm -r renamed; ls -A");
    assert_eq!(left, "");
    assert_eq!(std::fs::read_dir(overlay.below("")).expect("the directory below").count(), 0);
}

#[test]
fn what_is_no_container_passes_through() {
    let overlay = Overlay::start();
    overlay.shell(
        "mkdir a; echo hello > a/b; chmod 640 a/b; ln a/b a/c; ln -s b a/d; mkfifo a/e; \
         touch -d '2001-02-03 04:05:06 UTC' a/b; cp -a a copy; diff -r --exclude=e a copy",
    );
    let there =
        run(&mut shell(&overlay.below(""), "stat -c '%a %h %Y' a/b; readlink a/d; cat copy/d"));
    assert_eq!(there.out, "640 2 981173106\nb\nhello\n");
    assert!(overlay.below("a/e").exists());
}

#[test]
fn files_are_created_and_truncated_without_privileges() {
    let overlay = Overlay::start_unprivileged();
    // The mode forbids to open the file for writing again, but not to write through the descriptor
    // of its creation.
    let said = overlay.shell("(umask 0377; echo once > once); cat once; stat -c %a once");
    assert_eq!(said, "once\n400\n");
    let numbers = overlay.shell("mkdir -p a/b; stat -c %i a; ls -ai a/b | grep '\\.\\.$'");
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "`..` is the directory above");
}

#[test]
fn netcdf_tools_read_a_container() {
    let overlay = Overlay::start();
    overlay.shell(
        "printf 'netcdf t { dimensions: x = 5; variables: int v(x); data: v = 1,2,3,5,8; }' > t.cdl; \
         ncgen -o t.nc t.cdl; ncdump t.nc > before",
    );
    run(tatami().args(["relayout", "--to", "container"]).arg(overlay.below("t.nc")));
    let dumped = overlay.shell("ncdump t.nc; ncdump t.nc | cmp - before");
    assert!(dumped.contains("v = 1, 2, 3, 5, 8"), "{dumped}");
}
