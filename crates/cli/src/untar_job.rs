//! Unpacks an archive into a directory of the volume: small members together, large files as
//! streams, and the attributes of directories last.
//!
//! Members that would leave the directory, and a damaged archive, end the job: whoever made such an
//! archive may have meant harm. Another failure of one member does not stop the others. Attributes
//! go to inodes that this job has made, and to its directories, by their numbers.

use crate::archive_input::{OpenArchive, archive_failure};
use crate::error::{CommandFailure, CommandResult, ExitStatus, keep_first};
use crate::interrupt::{check_interrupt, is_interrupted};
use crate::json::wide_number;
use crate::term::{self, TermOutput};
use crate::unpack_batch::{MemberContent, UnpackMember, create_unnamed, make_members};
use crate::unpack_dirs::{MissingDir, UnpackDirs};
use crate::volume_path::{AnyPath, volume_failure};
use indicatif::ProgressBar;
use std::collections::HashSet;
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;
use tatami_archive::{ArchiveError, ArchiveMember, ArchiveMemberKind, split_member_name};
use tatami_client::OperationScope;
use tatami_client::tree::VolumeTree;
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::{InodeTemplate, XattrMode};
use tatami_wire::{Cred, Errno, Ino, InodeKind, SetAttr, SetTime, Timestamp};

/// Longest file that is read as a whole. Longer ones are written while they are read.
const SMALL_MAX: u64 = 256 << 10;
/// Most members that are made together, most bytes of their files, and most of these files that
/// are open at a time because they do not lie beside their inodes.
const MEMBERS_MAX: usize = 1024;
const BYTES_MAX: usize = 8 << 20;
const FILES_MAX: usize = 256;
/// Bytes of a large file that are read at a time.
const CHUNK: usize = 1 << 20;
/// Directories that get their attributes together.
const DIRS_MAX: usize = 1024;
/// After Ctrl-C, how long a request still waits for a node.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// Extended attributes that any user may set, policies included.
const USER_XATTRS: &[u8] = b"user.";
/// Those that make a directory keep its files in another way.
const POLICY_XATTRS: &[u8] = b"user.tatami.";

/// How members are unpacked.
#[derive(Clone, Copy, Debug)]
pub struct UntarRules {
    /// Members get their owners, and keep setuid and setgid.
    pub keeps_owner: bool,
    pub verbose: bool,
}

/// What was unpacked.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntarTotals {
    pub files: u64,
    pub directories: u64,
    /// Symbolic and hard links.
    pub links: u64,
    /// Devices and named pipes.
    pub special: u64,
    pub bytes: u64,
    /// Members that could not be unpacked, or not with all their attributes.
    pub failed: u64,
}

impl UntarTotals {
    /// Returns the number of members that were unpacked.
    pub fn members(&self) -> u64 {
        self.files + self.directories + self.links + self.special
    }

    /// Formats the number of members.
    pub fn describe(&self) -> String {
        match self.members() {
            1 => "1 member was unpacked".to_owned(),
            members => format!("{members} members were unpacked"),
        }
    }

    /// Returns the totals for `--json`.
    pub fn to_json(self) -> serde_json::Value {
        serde_json::json!({
            "members": self.members(),
            "files": self.files,
            "directories": self.directories,
            "links": self.links,
            "special_files": self.special,
            "bytes": wide_number(self.bytes),
            "failed": self.failed,
        })
    }
}

/// The unpacking of one archive.
pub struct UntarJob<'a> {
    tree: &'a VolumeTree,
    /// The archive, for messages.
    from: &'a AnyPath,
    rules: UntarRules,
    dirs: UnpackDirs<'a>,
    pending: Vec<UnpackMember>,
    /// The names of pending members, without a slash at the end.
    pending_names: HashSet<Vec<u8>>,
    pending_bytes: usize,
    /// Pending files that do not lie beside their inodes.
    pending_files: usize,
    pub totals: UntarTotals,
    bar: ProgressBar,
    out: TermOutput,
    result: CommandResult,
}

/// Whether a request that waits for a node is given up, because the user has interrupted the job.
fn gives_up_waiting(_: u32, waited: Duration) -> bool {
    is_interrupted() && waited >= LAST_WAIT
}

/// Returns the name of a member, for messages.
fn shown_name(name: &[u8]) -> String {
    term::escape_name(name)
}

impl<'a> UntarJob<'a> {
    /// Prepares the unpacking into the directory `root`.
    pub fn new(
        tree: &'a VolumeTree,
        root: Ino,
        umask: u16,
        from: &'a AnyPath,
        length: Option<u64>,
        rules: UntarRules,
    ) -> UntarJob<'a> {
        let bar = match length {
            Some(length) => term::byte_bar(length),
            None => term::new_spinner("unpacking"),
        };
        UntarJob {
            tree,
            from,
            rules,
            dirs: UnpackDirs::new(tree, root, umask),
            pending: Vec::new(),
            pending_names: HashSet::new(),
            pending_bytes: 0,
            pending_files: 0,
            totals: UntarTotals::default(),
            bar,
            out: TermOutput::new(),
            result: Ok(()),
        }
    }

    /// Unpacks all members. Also after a failure, members that are there have their attributes.
    ///
    /// # Errors
    /// The first failure. Ctrl-C.
    pub fn unpack_all(&mut self, archive: &mut OpenArchive) -> CommandResult {
        let _scope = OperationScope::begin(0, gives_up_waiting);
        let mut ended = self.unpack_members(archive);
        if !is_interrupted() {
            // What was read before the fault is whole.
            ended = ended.and(self.make_pending());
        }
        let set = self.set_dir_attrs();
        self.bar.finish_and_clear();
        let flushed = self.out.flush().map_err(CommandFailure::from);
        let ended = ended.and(set).and(flushed);
        match std::mem::replace(&mut self.result, Ok(())) {
            Ok(()) => ended,
            // The failure that ends the job is the one to return; the first one is printed.
            Err(first) => match ended {
                Ok(()) => Err(first),
                Err(last) => {
                    term::print_error(&first.report());
                    Err(last)
                }
            },
        }
    }

    fn unpack_members(&mut self, archive: &mut OpenArchive) -> CommandResult {
        let mut last: Vec<u8> = Vec::new();
        loop {
            check_interrupt()?;
            let next = archive.next_member();
            self.show_position(archive);
            let Some(member) = next.map_err(|e| self.end_by_archive(e, &last))? else { break };
            last.clone_from(&member.name);
            self.unpack_member(archive, member)?;
        }
        archive.drain_input().map_err(|e| self.end_by_archive(e, &last))
    }

    fn show_position(&self, archive: &OpenArchive) {
        self.bar.set_position(archive.position());
    }

    /// Returns the failure that ends the job, after member `last`.
    fn end_by_archive(&self, error: ArchiveError, last: &[u8]) -> CommandFailure {
        if let Err(interrupted) = check_interrupt() {
            return interrupted;
        }
        let is_io = matches!(error, ArchiveError::Io(_));
        let failure = archive_failure(self.from, error);
        match last.is_empty() || is_io {
            true => failure,
            false => CommandFailure {
                what: format!("{}: it fails in or after {}", failure.what, shown_name(last)),
                ..failure
            },
        }
    }

    /// Returns the failure of a member that leads out of the directory.
    fn refuse_member(&self, member: &ArchiveMember, why: &str) -> CommandFailure {
        let name = shown_name(&member.name);
        CommandFailure::new(format!("{} is not unpacked further: {name} is refused", self.from))
            .because(why.to_owned())
            .try_this("such an archive may be an attack; if you trust it, use tar on a mount")
    }

    /// Keeps the failure of one member, and goes on.
    ///
    /// # Errors
    /// The failure itself if the others would fail, too.
    fn record_failure(&mut self, what: &str, name: &[u8], errno: Errno) -> CommandResult {
        check_interrupt()?;
        self.totals.failed += 1;
        let failure = volume_failure(&format!("{what} {}", shown_name(name)), errno);
        let ends_all =
            failure.exit == ExitStatus::Degraded || matches!(errno, Errno::ENOSPC | Errno::EDQUOT);
        if ends_all {
            return Err(failure);
        }
        let result = &mut self.result;
        self.bar.suspend(|| keep_first(result, failure));
        Ok(())
    }

    fn unpack_member(&mut self, archive: &mut OpenArchive, member: ArchiveMember) -> CommandResult {
        let parts = split_member_name(&member.name)
            .map_err(|fault| self.refuse_member(&member, &fault.to_string()))?;
        if member.kind == ArchiveMemberKind::Dir {
            return self.unpack_dir(&member, &parts);
        }
        let Some((entry, above)) = parts.split_last() else {
            return Err(self.refuse_member(&member, "its name is that of the directory itself"));
        };
        self.settle_names(&parts)?;
        let parent = match self.dirs.make_dir(above, false) {
            Ok(parent) => parent,
            Err(missing) => return self.handle_missing(&member, missing),
        };
        let mut set = self.attrs_of(&member);
        let (entry, name) = (entry.to_vec(), parts.join(&b'/'));
        let device = |major: u32, minor: u32| libc::makedev(major, minor);
        let node = match member.kind {
            ArchiveMemberKind::HardLink => return self.make_hard_link(&member, parent, &entry),
            ArchiveMemberKind::File => {
                let limit = self.dirs.inline_limit(parent);
                if member.size > SMALL_MAX.max(limit) || member.is_sparse && member.size > limit {
                    return self.stream_file(archive, &member, parent, &entry, set);
                }
                let bytes = self.read_small_file(archive, &member)?;
                let is_inline = member.size <= limit && limit > 0;
                MemberContent::Bytes(bytes, is_inline)
            }
            ArchiveMemberKind::Symlink if member.link.is_empty() => {
                return self.record_failure("cannot unpack", &member.name, Errno::ENOENT);
            }
            ArchiveMemberKind::Symlink => {
                MemberContent::Node(InodeTemplate::Symlink(member.link.clone().into()))
            }
            ArchiveMemberKind::Fifo => MemberContent::Node(InodeTemplate::Fifo),
            ArchiveMemberKind::CharDev(major, minor) => {
                MemberContent::Node(InodeTemplate::CharDev(device(major, minor)))
            }
            ArchiveMemberKind::BlockDev(major, minor) => {
                MemberContent::Node(InodeTemplate::BlockDev(device(major, minor)))
            }
            ArchiveMemberKind::Dir => return Ok(()),
        };
        if let MemberContent::Bytes(bytes, is_inline) = &node {
            self.pending_bytes += bytes.len();
            self.pending_files += usize::from(!is_inline);
        }
        self.pending_names.insert(name);
        let late_mode = self.put_off_mode(&member, &mut set);
        let (content, ArchiveMember { name, xattrs, .. }) = (node, member);
        let is_first = self.dirs.take_fresh(parent);
        self.pending.push(UnpackMember {
            name,
            parent,
            entry,
            content,
            set,
            xattrs,
            late_mode,
            is_first,
        });
        let is_full = self.pending.len() >= MEMBERS_MAX
            || self.pending_bytes >= BYTES_MAX
            || self.pending_files >= FILES_MAX;
        if is_full { self.make_pending() } else { Ok(()) }
    }

    /// Makes the pending members if one of them has this name, or a name above it: it comes first
    /// in the archive.
    fn settle_names(&mut self, parts: &[&[u8]]) -> CommandResult {
        if self.pending_names.is_empty() {
            return Ok(());
        }
        let mut name = Vec::new();
        for part in parts {
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend_from_slice(part);
            if self.pending_names.contains(&name) {
                return self.make_pending();
            }
        }
        Ok(())
    }

    fn handle_missing(&mut self, member: &ArchiveMember, missing: MissingDir) -> CommandResult {
        match missing {
            MissingDir::BehindLink(link) => {
                let why = format!("it leads through the symbolic link {}", shown_name(&link));
                Err(self.refuse_member(member, &why))
            }
            MissingDir::Failed(_, errno) => {
                self.record_failure("cannot unpack", &member.name, errno)
            }
        }
    }

    /// Returns the attributes that a member gets.
    fn attrs_of(&self, member: &ArchiveMember) -> SetAttr {
        let time = Timestamp { sec: member.mtime.sec, nsec: member.mtime.nsec };
        let mut set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        if self.rules.keeps_owner {
            let number = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
            (set.uid, set.gid) = (number(member.uid), number(member.gid));
        }
        if member.kind != ArchiveMemberKind::Symlink {
            // Rights of an owner go along with the owner.
            let kept = match (self.rules.keeps_owner, member.kind) {
                (true, _) => 0o7777,
                (false, ArchiveMemberKind::Dir) => 0o1777,
                (false, _) => 0o777,
            };
            set.mode = Some(member.mode & kept);
        }
        set
    }

    /// Lets the owner write a member until it has its extended attributes, which only the superuser
    /// sets without that. Returns the permission bits that it gets then.
    fn put_off_mode(&self, member: &ArchiveMember, set: &mut SetAttr) -> Option<u16> {
        let mode = set.mode.filter(|mode| mode & 0o200 == 0)?;
        if member.xattrs.is_empty() || self.tree.cred().is_root() {
            return None;
        }
        set.mode = Some(mode | 0o200);
        Some(mode)
    }

    fn unpack_dir(&mut self, member: &ArchiveMember, parts: &[&[u8]]) -> CommandResult {
        self.settle_names(parts)?;
        let ino = match self.dirs.make_dir(parts, true) {
            Ok(ino) => ino,
            Err(missing) => return self.handle_missing(member, missing),
        };
        self.totals.directories += 1;
        self.print_name(&member.name)?;
        // Policies at once: they hold for the files that are made from now on.
        self.set_xattrs(ino, &member.name, &member.xattrs)?;
        let has_policies = member.xattrs.iter().any(|(name, _)| name.starts_with(POLICY_XATTRS));
        let set = self.attrs_of(member);
        self.dirs.record_attrs(&parts.join(&b'/'), set, has_policies);
        Ok(())
    }

    /// Reads a file that is at most [`SMALL_MAX`] or the limit of a directory long.
    fn read_small_file(
        &self,
        archive: &mut OpenArchive,
        member: &ArchiveMember,
    ) -> CommandResult<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(member.size).unwrap_or_default()];
        let mut buffer = vec![0; bytes.len().max(1)];
        while let Some((offset, got)) =
            archive.read_chunk(&mut buffer).map_err(|e| self.end_by_archive(e, &member.name))?
        {
            // The reader has checked that all lies within the size.
            let from = usize::try_from(offset).unwrap_or_default();
            if let Some(place) = bytes.get_mut(from..from + got) {
                place.copy_from_slice(&buffer[..got]);
            }
        }
        Ok(bytes)
    }

    /// Writes a large or sparse file while it is read.
    fn stream_file(
        &mut self,
        archive: &mut OpenArchive,
        member: &ArchiveMember,
        parent: Ino,
        entry: &[u8],
        set: SetAttr,
    ) -> CommandResult {
        let mut file = match create_unnamed(self.tree, parent, entry) {
            Ok(file) => file,
            Err(e) => return self.record_failure("cannot unpack", &member.name, e),
        };
        self.bar.set_message(shown_name(entry));
        let (mut buffer, mut end) = (vec![0; CHUNK], 0);
        loop {
            check_interrupt()?;
            let next = archive.read_chunk(&mut buffer);
            self.show_position(archive);
            let Some((offset, got)) = next.map_err(|e| self.end_by_archive(e, &member.name))?
            else {
                break;
            };
            let handle = file.handle();
            let mut written = Ok(());
            if offset != end {
                written = handle.seek(SeekFrom::Start(offset)).map(drop);
            }
            if let Err(e) = written.and_then(|()| handle.write_all(&buffer[..got])) {
                return self.record_failure("cannot unpack", &member.name, Errno::from(e));
            }
            end = offset + got as u64;
        }
        let cut = match end < member.size {
            true => file.handle().truncate(member.size),
            false => Ok(()),
        };
        // The file is still writable for its owner.
        self.set_xattrs(file.ino(), &member.name, &member.xattrs)?;
        match cut.and_then(|()| file.publish(Some(set), true)) {
            Ok(()) => self.count_member(&member.name, InodeKind::File, member.size),
            Err(e) => self.record_failure("cannot unpack", &member.name, e),
        }
    }

    fn make_hard_link(
        &mut self,
        member: &ArchiveMember,
        parent: Ino,
        entry: &[u8],
    ) -> CommandResult {
        // The target comes before the link.
        self.make_pending()?;
        let target = split_member_name(&member.link);
        let parts = target.map_err(|fault| {
            let target = shown_name(&member.link);
            self.refuse_member(member, &format!("it is a link to {target}, and {fault}"))
        })?;
        let Some((target, above)) = parts.split_last() else {
            return self.record_failure("cannot unpack", &member.name, Errno::EISDIR);
        };
        let dir = match self.dirs.find_dir(above) {
            Ok(dir) => dir,
            Err(missing) => return self.handle_missing(member, missing),
        };
        match self.link_inode(dir, target, parent, entry) {
            Ok(()) => self.count_member(&member.name, InodeKind::Symlink, 0),
            Err(e) => {
                let what = format!("cannot link to {}:", shown_name(&member.link));
                self.record_failure(&what, &member.name, e)
            }
        }
    }

    fn link_inode(&self, dir: Ino, target: &[u8], parent: Ino, entry: &[u8]) -> Result<(), Errno> {
        let (client, cred) = (self.tree.client(), self.tree.cred());
        let found = client.lookup(cred, dir, target)?;
        if found.kind == InodeKind::Dir {
            return Err(Errno::EISDIR);
        }
        match client.link(cred, found.ino, parent, entry) {
            Err(Errno::EEXIST) => {
                let old = client.lookup(cred, parent, entry)?;
                if old.ino != found.ino {
                    let links = vec![(found.ino, parent, entry.to_vec())];
                    let replaced = client.replace_many(cred, links);
                    replaced.into_iter().next().unwrap_or(Err(Errno::EPROTO))?;
                }
            }
            linked => _ = linked?,
        }
        Ok(())
    }

    /// Makes the pending members.
    fn make_pending(&mut self) -> CommandResult {
        let members = std::mem::take(&mut self.pending);
        self.pending_names.clear();
        (self.pending_bytes, self.pending_files) = (0, 0);
        if members.is_empty() {
            return Ok(());
        }
        let made = make_members(self.tree, &members);
        let mut ended = Ok(());
        for (member, made) in members.iter().zip(made) {
            let (kind, bytes) = match &member.content {
                MemberContent::Bytes(bytes, _) => (InodeKind::File, bytes.len() as u64),
                MemberContent::Node(InodeTemplate::Symlink(_)) => (InodeKind::Symlink, 0),
                MemberContent::Node(_) => (InodeKind::Fifo, 0),
            };
            let done = match made {
                Ok(ino) => self
                    .count_member(&member.name, kind, bytes)
                    .and_then(|()| self.set_xattrs(ino, &member.name, &member.xattrs))
                    .and_then(|()| self.set_late_mode(ino, &member.name, member.late_mode)),
                Err(e) => self.record_failure("cannot unpack", &member.name, e),
            };
            ended = ended.and(done);
        }
        ended
    }

    fn set_late_mode(&mut self, ino: Ino, name: &[u8], mode: Option<u16>) -> CommandResult {
        if mode.is_none() {
            return Ok(());
        }
        let set = SetAttr { mode, ..SetAttr::default() };
        match self.tree.client().setattr(self.tree.cred(), ino, set) {
            Ok(_) => Ok(()),
            Err(e) => self.record_failure("cannot set the mode of", name, e),
        }
    }

    fn count_member(&mut self, name: &[u8], kind: InodeKind, bytes: u64) -> CommandResult {
        match kind {
            InodeKind::File => self.totals.files += 1,
            InodeKind::Symlink => self.totals.links += 1,
            _ => self.totals.special += 1,
        }
        self.totals.bytes += bytes;
        self.print_name(name)
    }

    fn print_name(&mut self, name: &[u8]) -> CommandResult {
        if self.rules.verbose {
            let (out, text) = (&mut self.out, shown_name(name));
            self.bar.suspend(|| writeln!(out, "{text}"))?;
        }
        Ok(())
    }

    /// Sets extended attributes. Those that are not the user's own need the superuser.
    fn set_xattrs(
        &mut self,
        ino: Ino,
        name: &[u8],
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> CommandResult {
        let cred: &Cred = self.tree.cred();
        for (key, value) in xattrs {
            if !key.starts_with(USER_XATTRS) && !cred.is_root() {
                continue;
            }
            let set = self.tree.client().set_xattr(cred, ino, key, value, XattrMode::Set);
            if let Err(e) = set {
                let what = format!("cannot set the attribute {} of", shown_name(key));
                self.record_failure(&what, name, e)?;
            }
        }
        Ok(())
    }

    /// Gives the directories their attributes: each entry that is made in one changes its time, and
    /// its mode may forbid that.
    fn set_dir_attrs(&mut self) -> CommandResult {
        let all = self.dirs.take_attrs();
        for some in all.chunks(DIRS_MAX) {
            let operations =
                some.iter().map(|(_, ino, set)| BatchOp::SetAttr { ino: *ino, set: set.clone() });
            let done = self.tree.client().run_batch(self.tree.cred(), operations.collect());
            for ((name, ..), done) in some.iter().zip(done) {
                if let Err(e) = done {
                    self.record_failure("cannot set mode and time of", name, e)?;
                }
            }
        }
        Ok(())
    }
}
