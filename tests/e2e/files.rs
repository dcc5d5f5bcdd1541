//! The bytes of a file: the mount does the same as a local disk, for a file on this node (where the
//! kernel goes straight to the disk) and for one on another node (where bytes travel).

use rustix::fs::{FallocateFlags, SeekFrom};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use tatami_tests::files::{bytes_of, create, get, open, open_with, put, refused, stat};
use tatami_tests::map::Map;
use tatami_tests::model::pattern;
use tatami_tests::policies::{are_policies_wanted, skip_with_policies};
use tatami_tests::{Cluster, Setup, command};

/// A test in a folder, with a function that makes files there.
type PlacedTest = fn(&Path, &dyn Fn(&str));

/// Runs `test` in a folder of the first mount, with a function that makes files there: first files
/// that lie on this node, then files that lie on the other one.
fn local_and_remote(test: PlacedTest) {
    let cluster = Cluster::start(2);
    on(&cluster, test);
    cluster.finish();
}

fn on(cluster: &Cluster, test: PlacedTest) {
    for (placed, node) in [("local", 0), ("remote", 1)] {
        println!("files that are {placed}");
        fs::create_dir(cluster.mount(0).join(placed)).expect("mkdir");
        let folder = cluster.mount(0).join(placed);
        let creator = cluster.mount(node).join(placed);
        test(&folder, &|name| drop(create(creator.join(name))));
    }
}

#[test]
fn a_sparse_file_takes_no_space_and_reads_as_zeros() {
    local_and_remote(|folder, place| {
        place("f");
        let file = open(folder.join("f"));
        file.set_len(1 << 40).expect("ftruncate to 1 TiB");
        file.write_all_at(b"middle", 1 << 39).expect("pwrite");
        let mut bytes = vec![1; 8192];
        file.read_exact_at(&mut bytes, (1 << 39) - 4096).expect("pread");
        assert!(bytes[..4096].iter().all(|b| *b == 0));
        assert_eq!(&bytes[4096..4102], b"middle");
        drop(file);
        assert_eq!(stat(folder.join("f")).len(), 1 << 40);
        assert!(stat(folder.join("f")).blocks() <= 64, "{}", stat(folder.join("f")).blocks());
    });
}

#[test]
fn seek_finds_data_and_holes() {
    local_and_remote(|folder, place| {
        place("f");
        let file = open(folder.join("f"));
        file.set_len(3 << 20).expect("ftruncate");
        file.write_all_at(&[7; 4096], 1 << 20).expect("pwrite");
        let seek = |from| rustix::fs::seek(file.as_fd(), from);
        if are_policies_wanted() {
            // A file in a region has no holes but the one at its end, as POSIX allows.
            assert_eq!(seek(SeekFrom::Data(5)).expect("SEEK_DATA"), 5);
            assert_eq!(seek(SeekFrom::Hole(5)).expect("SEEK_HOLE"), 3 << 20);
        } else {
            assert_eq!(seek(SeekFrom::Data(0)).expect("SEEK_DATA"), 1 << 20);
            assert_eq!(seek(SeekFrom::Hole(1 << 20)).expect("SEEK_HOLE"), (1 << 20) + 4096);
            assert_eq!(seek(SeekFrom::Hole(0)).expect("SEEK_HOLE"), 0);
            assert_eq!(seek(SeekFrom::Data((1 << 20) + 4096)), Err(rustix::io::Errno::NXIO));
        }
        assert_eq!(seek(SeekFrom::Data(3 << 20)), Err(rustix::io::Errno::NXIO));
        assert_eq!(seek(SeekFrom::Hole(3 << 20)), Err(rustix::io::Errno::NXIO));
        assert_eq!(seek(SeekFrom::End(-1)).expect("SEEK_END"), (3 << 20) - 1);
    });
}

#[test]
fn fallocate_reserves_punches_and_zeroes() {
    local_and_remote(|folder, place| {
        place("f");
        let file = open(folder.join("f"));
        let all = pattern(1, 0, 1 << 20);
        file.write_all_at(&all, 0).expect("pwrite");
        let allocate = |flags, at, len| rustix::fs::fallocate(&file, flags, at, len);

        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        allocate(punch, 100_000, 300_000).expect("punch a hole");
        let bytes = bytes_of(&file);
        assert!(bytes[..100_000] == all[..100_000] && bytes[400_000..] == all[400_000..]);
        assert!(bytes[100_000..400_000].iter().all(|b| *b == 0));
        // A region keeps its length, and reserves nothing behind the end.
        let on_disk = !are_policies_wanted();
        assert!(!on_disk || file.metadata().expect("fstat").blocks() <= 2048 - 560);

        allocate(FallocateFlags::ZERO_RANGE, 500_000, 10_000).expect("zero a range");
        assert!(bytes_of(&file)[500_000..510_000].iter().all(|b| *b == 0));

        allocate(FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).expect("reserve beyond the end");
        assert_eq!(file.metadata().expect("fstat").len(), 1 << 20);
        assert!(!on_disk || file.metadata().expect("fstat").blocks() >= 2048 + 2048 - 600);

        allocate(FallocateFlags::empty(), 0, 3 << 20).expect("reserve and grow");
        assert_eq!(file.metadata().expect("fstat").len(), 3 << 20);
        assert!(bytes_of(&file)[2 << 20..].iter().all(|b| *b == 0));
    });
}

#[test]
fn appends_go_to_the_end_whatever_the_position() {
    local_and_remote(|folder, place| {
        place("f");
        let mut one = open_with(folder.join("f"), libc::O_APPEND);
        let mut two = open_with(folder.join("f"), libc::O_APPEND);
        for i in 0..20u8 {
            one.rewind().expect("seek");
            one.write_all(&[i; 100]).expect("append");
            two.write_all(&[i + 100; 50]).expect("append");
        }
        let bytes = get(folder.join("f"));
        assert_eq!(bytes.len(), 20 * 150);
        for (i, part) in bytes.chunks(150).enumerate() {
            assert!(part[..100].iter().all(|b| usize::from(*b) == i));
            assert!(part[100..].iter().all(|b| usize::from(*b) == i + 100));
        }
        // After the flag is set on an open descriptor, it appends.
        let mut late = open(folder.join("f"));
        rustix::fs::fcntl_setfl(&late, rustix::fs::OFlags::APPEND).expect("F_SETFL");
        late.rewind().expect("seek");
        late.write_all(b"end").expect("append");
        assert!(get(folder.join("f")).ends_with(b"end"));
    });
}

#[test]
fn open_flags_mean_what_they_say() {
    local_and_remote(|folder, place| {
        place("f");
        let path = folder.join("f");
        put(&path, "content");
        let exclusive = OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(refused(exclusive), libc::EEXIST);
        let writer = OpenOptions::new().write(true).open(&path).expect("O_WRONLY");
        assert_eq!(refused(writer.read_at(&mut [0; 1], 0)), libc::EBADF);
        let reader = File::open(&path).expect("O_RDONLY");
        assert_eq!(refused(reader.write_at(b"x", 0)), libc::EBADF);
        assert_eq!(refused(reader.set_len(1)), libc::EINVAL);
        let flags = libc::O_DIRECTORY;
        let dir = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        assert_eq!(refused(dir), libc::ENOTDIR);
        let empty = open_with(&path, libc::O_TRUNC);
        assert_eq!(empty.metadata().expect("fstat").len(), 0);
        std::os::unix::fs::symlink("f", folder.join("link")).expect("symlink");
        let flags = libc::O_NOFOLLOW;
        let link = OpenOptions::new().read(true).custom_flags(flags).open(folder.join("link"));
        assert_eq!(refused(link), libc::ELOOP);
        let synced = open_with(&path, libc::O_SYNC);
        synced.write_all_at(b"durable", 0).expect("pwrite with O_SYNC");
        assert_eq!(get(&path), b"durable");
    });
}

#[test]
fn direct_io_reads_and_writes_the_same_bytes() {
    local_and_remote(|folder, place| {
        place("f");
        let file = open_with(folder.join("f"), libc::O_DIRECT);
        // O_DIRECT wants memory at a multiple of the block size.
        let mut memory = vec![0u8; 65536 + 4096];
        let shift = memory.as_ptr().align_offset(4096);
        let block = &mut memory[shift..shift + 65536];
        block.copy_from_slice(&pattern(5, 0, 65536));
        assert_eq!(file.write_at(block, 0).expect("direct pwrite"), 65536);
        assert_eq!(file.write_at(&block[..4096], 65536).expect("direct pwrite"), 4096);
        block.fill(0);
        assert_eq!(file.read_at(block, 0).expect("direct pread"), 65536);
        assert!(*block == pattern(5, 0, 65536)[..]);
        // Through the page cache, the bytes are the same.
        let bytes = get(folder.join("f"));
        assert!(bytes[..65536] == pattern(5, 0, 65536)[..] && bytes.len() == 69632);
    });
}

#[test]
fn a_shared_mapping_and_the_file_are_the_same_bytes() {
    local_and_remote(|folder, place| {
        place("f");
        let file = open(folder.join("f"));
        file.write_all_at(&pattern(1, 0, 100_000), 0).expect("pwrite");
        let map = Map::shared(&file, 100_000);
        assert!(map.bytes()[..] == pattern(1, 0, 100_000)[..]);
        // Other readers see a store without msync, in this process and in another.
        map.bytes()[50_000..50_005].copy_from_slice(b"store");
        let mut five = [0; 5];
        file.read_exact_at(&mut five, 50_000).expect("pread");
        assert_eq!(&five, b"store");
        let dd = "dd if=f bs=1 skip=50000 count=5 status=none";
        assert_eq!(command::run(&mut command::shell(folder, dd)).out, "store");
        // The mapping shows a write of any process.
        let dd = "printf write | dd of=f bs=1 seek=70000 conv=notrunc status=none";
        command::run(&mut command::shell(folder, dd));
        assert_eq!(&map.bytes()[70_000..70_005], b"write");
        drop(map);
        drop(file);
        assert_eq!(&get(folder.join("f"))[50_000..50_005], b"store");
    });
}

#[test]
fn a_mapping_outlives_its_descriptor() {
    local_and_remote(|folder, place| {
        place("f");
        put(folder.join("f"), vec![0; 50_000]);
        let map = Map::shared(&open(folder.join("f")), 50_000);
        map.bytes()[40_000] = 9;
        map.sync();
        assert_eq!(get(folder.join("f"))[40_000], 9);
        map.bytes()[41_000] = 8;
        drop(map);
        assert_eq!(get(folder.join("f"))[41_000], 8, "stored after close, unmapped without msync");
    });
}

#[test]
fn a_private_mapping_leaves_the_file_alone() {
    local_and_remote(|folder, place| {
        place("f");
        put(folder.join("f"), vec![1; 10_000]);
        let map = Map::private(&open(folder.join("f")), 10_000);
        map.bytes().fill(2);
        assert!(get(folder.join("f")).iter().all(|b| *b == 1));
    });
}

#[test]
fn a_program_on_the_mount_runs() {
    local_and_remote(|folder, place| {
        place("true");
        command::copy_program("/bin/true", folder.join("true"));
        command::run(&mut command::program(folder.join("true").to_str().expect("UTF-8")));
        // A running program cannot be written: a script runs by its first line.
        place("script");
        let script = "printf '#!/bin/sh\\necho from the mount\\n' > script && chmod 755 script";
        command::run(&mut command::shell(folder, script));
        let said =
            command::run(&mut command::program(folder.join("script").to_str().expect("UTF-8")));
        assert_eq!(said.out, "from the mount\n");
    });
}

#[test]
fn copy_file_range_copies_between_any_two_files() {
    let cluster = Cluster::start(2);
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let all = pattern(3, 0, 700_000);
    put(a.join("local"), &all);
    put(b.join("remote"), &all);
    for source in ["local", "remote"] {
        for (target, creator) in [("to-local", &a), ("to-remote", &b)] {
            put(creator.join(target), "");
            let (from, to) = (open(a.join(source)), open(a.join(target)));
            let (mut at, mut done) = (1000, 500);
            while at < 600_000 {
                let len = (600_000 - at) as usize;
                let n =
                    rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut done), len)
                        .expect("copy_file_range");
                assert!(n > 0);
            }
            drop(to);
            let bytes = get(b.join(target));
            assert!(bytes[500..] == all[1000..600_000], "{source} {target}");
            assert!(bytes[..500].iter().all(|b| *b == 0));
        }
    }
    cluster.finish();
}

#[test]
fn a_file_without_a_name_gets_one_by_link() {
    let cluster = Cluster::start(2);
    for node in 0..2 {
        let (here, there) = (cluster.mount(node), cluster.mount(1 - node));
        let file = open_with(&here, libc::O_TMPFILE);
        file.write_all_at(&pattern(1, 0, 30_000), 0).expect("pwrite");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        let name = format!("named-{node}");
        let by_fd = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::fs::linkat(
            rustix::fs::CWD,
            by_fd,
            rustix::fs::CWD,
            here.join(&name),
            rustix::fs::AtFlags::SYMLINK_FOLLOW,
        )
        .expect("linkat");
        assert_eq!(file.metadata().expect("fstat").nlink(), 1);
        drop(file);
        assert!(get(there.join(&name)) == pattern(1, 0, 30_000));

        // Without a name, a file is removed with its last descriptor.
        let file = open_with(&here, libc::O_TMPFILE);
        file.write_all_at(b"nobody will know", 0).expect("pwrite");
    }
    cluster.finish();
}

/// Waits longer than a tick of the clock of file times.
#[allow(clippy::disallowed_methods)]
fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn times_have_nanoseconds_and_move_as_they_should() {
    local_and_remote(|folder, place| {
        place("f");
        let path = folder.join("f");
        let file = open(&path);
        let time = |sec, nsec| std::time::UNIX_EPOCH + std::time::Duration::new(sec, nsec);
        let times = fs::FileTimes::new();
        let times = times.set_accessed(time(1_000, 1)).set_modified(time(2_000, 999_999_999));
        file.set_times(times).expect("utimens");
        assert_eq!((stat(&path).atime(), stat(&path).atime_nsec()), (1_000, 1));
        assert_eq!((stat(&path).mtime(), stat(&path).mtime_nsec()), (2_000, 999_999_999));

        let before = stat(&path);
        tick();
        file.write_all_at(b"x", 0).expect("pwrite");
        drop(file);
        let after = stat(&path);
        assert!(after.mtime() > 1_000_000_000, "a write moves mtime");
        let moved = [before.ctime(), before.ctime_nsec(), after.ctime(), after.ctime_nsec()];
        assert!(moved[2..] > moved[..2], "ctime {moved:?}");

        let before = after;
        get(&path);
        let after = stat(&path);
        assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));

        tick();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("chmod");
        let after = stat(&path);
        let moved = [before.ctime(), before.ctime_nsec(), after.ctime(), after.ctime_nsec()];
        assert!(moved[2..] > moved[..2], "ctime {moved:?}");
        assert_eq!((after.mtime(), after.mtime_nsec()), (before.mtime(), before.mtime_nsec()));
    });
}

/// Checks the times that programs and backups rely on. Times that no program has set only go
/// forward, and the last change is not before the last modification. This holds on the file's mount
/// and on another one.
fn times_go_forward(cluster: &Cluster) {
    type Act = fn(&File, &Path);
    let acts: [(&str, Act); 8] = [
        ("nothing", |_, _| ()),
        ("write", |file, _| file.write_all_at(b"12345", 0).expect("pwrite")),
        ("write in place", |file, _| file.write_all_at(b"54321", 0).expect("pwrite")),
        ("chmod", |_, path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(path, mode).expect("chmod");
        }),
        ("append", |file, _| file.write_all_at(b"6", 5).expect("pwrite")),
        ("cut", |file, _| file.set_len(3).expect("ftruncate")),
        ("touch", |_, path| {
            let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
            let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
            let none = rustix::fs::AtFlags::empty();
            rustix::fs::utimensat(rustix::fs::CWD, path, &times, none).expect("utimensat");
        }),
        ("fsync", |file, _| file.sync_all().expect("fsync")),
    ];
    let times = |of: &fs::Metadata| ((of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec()));
    for (creator, reader) in [(0, 1), (1, 1)] {
        for round in 0..40 {
            let name = format!("f-{creator}-{round}");
            let paths = [cluster.mount(0).join(&name), cluster.mount(reader).join(&name)];
            let own = create(cluster.mount(creator).join(&name));
            let file = if creator == 0 { own } else { open(&paths[0]) };
            let mut before = ((0, 0), (0, 0));
            let mut look = |what: &str, places: &[&Path]| {
                for place in places {
                    let now = times(&stat(place));
                    let (mtime, ctime) = now;
                    assert!(ctime >= mtime, "{name}, {what}, {}: {now:?}", place.display());
                    assert!(
                        mtime >= before.0 && ctime >= before.1,
                        "{name}, {what}, {}: from {before:?} to {now:?}",
                        place.display()
                    );
                    before = now;
                }
            };
            for (step, (what, act)) in acts.iter().enumerate() {
                act(&file, &paths[0]);
                // The bytes of a remote file are on their way for a while; meanwhile the writing
                // mount knows more than the others.
                match (creator, (round + step) % 3) {
                    (_, 0) => look(what, &[&paths[0]]),
                    (0, 1) => look(what, &[&paths[1], &paths[0]]),
                    _ => (),
                }
            }
            look("all", &[&paths[0], &paths[1]]);
            drop(file);
            look("close", &[&paths[0], &paths[1]]);
        }
    }
}

#[test]
fn times_go_forward_and_the_last_change_is_not_before_the_last_modification() {
    for setup in [Setup::nodes(2), Setup::nodes(2).without_passthrough()] {
        let cluster = setup.start();
        times_go_forward(&cluster);
        cluster.finish();
    }
}

/// Limits a process to `most` descriptors.
fn limit_descriptors(pid: i32, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: prlimit reads one rlimit and writes none.
    let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn descriptors(pid: i32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("of our own user").count() as u64
}

/// A mount without a free descriptor returns the error number of that condition, and goes on when
/// others have been closed. Files that are only read take none, where the kernel reads them itself.
#[test]
fn a_mount_without_descriptors_says_so_and_readers_take_none() {
    if skip_with_policies("a file in a region takes no descriptor of the mount") {
        return;
    }
    // The mount may take up to 64 spare files meanwhile, and keeps an eighth for its connections.
    // More than half must be left for the writers.
    const MORE: u64 = 240;
    for setup in [Setup::nodes(1), Setup::nodes(1).without_passthrough()] {
        let passes = setup.config.is_empty();
        let cluster = setup.start();
        let (mount, pid) = (cluster.mount(0), cluster.mount_pid(0));
        let path = |n: u64| mount.join(format!("f{n}"));
        (0..3 * MORE).for_each(|n| put(path(n), format!("bytes of {n}")));
        limit_descriptors(pid, descriptors(pid) + MORE);
        if passes {
            let readers: Vec<File> =
                (0..3 * MORE).map(|n| File::open(path(n)).expect("open to read")).collect();
            for (n, reader) in (0..).zip(&readers) {
                assert_eq!(bytes_of(reader), format!("bytes of {n}").as_bytes());
            }
        }
        let mut writers = Vec::new();
        let refused = loop {
            let opened = OpenOptions::new().write(true).open(path(writers.len() as u64));
            match opened.and_then(|file| file.write_all_at(b"B", 0).map(|()| file)) {
                Ok(file) => writers.push(file),
                Err(error) => break error,
            }
            assert!(writers.len() < 3 * MORE as usize, "the limit does not hold");
        };
        assert_eq!(refused.raw_os_error(), Some(libc::ENFILE), "{refused}");
        let held = descriptors(pid);
        assert!(writers.len() as u64 > MORE / 2, "{} files, {held} descriptors", writers.len());
        drop(writers);
        let start = std::time::Instant::now();
        while let Err(error) = fs::write(path(0), "again") {
            assert_eq!(error.raw_os_error(), Some(libc::ENFILE), "{error}");
            assert!(start.elapsed().as_secs() < 120, "the mount does not come to itself");
            tick();
        }
        assert_eq!(get(path(0)), b"again");
        cluster.finish();
    }
}

#[test]
fn times_before_1970_and_after_2038_are_kept() {
    let cluster = Cluster::start(1);
    let path = cluster.mount(0).join("f");
    put(&path, "");
    for sec in [-86_400, 5_000_000_000] {
        let time = rustix::fs::Timespec { tv_sec: sec, tv_nsec: 5 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let none = rustix::fs::AtFlags::empty();
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, none).expect("utimensat");
        assert_eq!((stat(&path).mtime(), stat(&path).mtime_nsec()), (sec, 5));
    }
    cluster.finish();
}

#[test]
fn large_and_odd_requests_return_what_was_written() {
    local_and_remote(|folder, place| {
        place("f");
        let mut file = open(folder.join("f"));
        // Odd sizes over page and request boundaries, in one stream.
        let mut all = Vec::new();
        for (i, len) in [1, 4095, 4097, 131_073, 1 << 20, (3 << 20) + 7, 65_535].iter().enumerate()
        {
            let bytes = pattern(i as u8, 0, *len);
            file.write_all(&bytes).expect("write");
            all.extend(bytes);
        }
        file.rewind().expect("seek");
        let mut back = Vec::new();
        file.read_to_end(&mut back).expect("read");
        assert!(back == all);
        let slices = [std::io::IoSlice::new(b"vec"), std::io::IoSlice::new(b"tored")];
        assert_eq!(file.write_vectored(&slices).expect("writev"), 8);
        drop(file);
        assert!(get(folder.join("f")).ends_with(b"vectored"));
        // A read past the end is short, one at the end is empty.
        let file = open(folder.join("f"));
        assert_eq!(file.read_at(&mut [0; 100], all.len() as u64 + 3).expect("pread"), 5);
        assert_eq!(file.read_at(&mut [0; 100], all.len() as u64 + 8).expect("pread"), 0);
    });
}

#[test]
fn two_descriptors_of_one_mount_see_each_other_at_once() {
    local_and_remote(|folder, place| {
        place("f");
        let (one, two) = (open(folder.join("f")), open(folder.join("f")));
        for i in 0..50u8 {
            one.write_all_at(&[i; 5000], u64::from(i) * 5000).expect("pwrite");
            assert_eq!(two.metadata().expect("fstat").len(), (u64::from(i) + 1) * 5000);
            assert_eq!(stat(folder.join("f")).len(), (u64::from(i) + 1) * 5000);
            let mut bytes = [0; 5000];
            two.read_exact_at(&mut bytes, u64::from(i) * 5000).expect("pread");
            assert!(bytes.iter().all(|b| *b == i));
        }
        two.set_len(10).expect("ftruncate");
        assert_eq!(one.metadata().expect("fstat").len(), 10);
        assert_eq!(one.read_at(&mut [0; 100], 0).expect("pread"), 10);
    });
}

/// Every child process closes its copies of this process's descriptors.
#[test]
fn a_size_does_not_go_back_while_others_close_their_descriptors() {
    local_and_remote(|folder, place| {
        place("f");
        let (one, two) = (open(folder.join("f")), open(folder.join("f")));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for file in [&one, &two] {
                scope.spawn(|| {
                    while !ended.load(SeqCst) {
                        drop(file.try_clone().expect("dup"));
                    }
                });
            }
            let all_seen = (1..=300u64).all(|i| {
                one.write_all_at(&[1; 100], (i - 1) * 100).expect("pwrite");
                let seen = [two.metadata().expect("fstat").len(), stat(folder.join("f")).len()];
                seen == [i * 100; 2] || {
                    println!("{seen:?} after {} were written", i * 100);
                    false
                }
            });
            ended.store(true, SeqCst);
            assert!(all_seen);
        });
    });
}

#[test]
fn bytes_go_through_the_mount_process_where_passthrough_is_off() {
    let cluster = Setup::nodes(2).without_passthrough().start();
    assert_eq!(cluster.status()["mounts"][0]["passthrough"], false);
    on(&cluster, |folder, place| {
        place("f");
        let file = open(folder.join("f"));
        file.write_all_at(&pattern(2, 0, 1 << 20), 0).expect("pwrite");
        let map = Map::shared(&file, 1 << 20);
        map.bytes()[77_777] = 0xfe;
        map.sync();
        let mut expected = pattern(2, 0, 1 << 20);
        expected[77_777] = 0xfe;
        assert!(bytes_of(&file) == expected);
    });
    cluster.finish();
}

#[test]
fn statfs_tells_the_space_of_the_disks() {
    let cluster = Cluster::start(2);
    let disk = rustix::fs::statvfs(cluster.dir()).expect("statvfs of the disk");
    for node in 0..2 {
        let volume = rustix::fs::statvfs(cluster.mount(node)).expect("statvfs of the mount");
        // Both data directories lie on one disk, which counts once.
        let (total, real) = (volume.f_blocks * volume.f_frsize, disk.f_blocks * disk.f_frsize);
        // Beside it, each node has its own region device, if the tests run with them.
        let devices = match &cluster.status()["regions"] {
            serde_json::Value::Null => 0,
            devices => command::wide_number(&devices["total"]),
        };
        assert_eq!(total, real + devices, "total of the volume and of disk and devices");
        assert!(volume.f_bavail <= volume.f_bfree && volume.f_bfree <= volume.f_blocks);
        assert_eq!(volume.f_namemax, 255);
    }
    let said = command::run(command::program("df --output=size").arg(cluster.mount(0)));
    assert!(said.out.lines().count() == 2);
    cluster.finish();
}
