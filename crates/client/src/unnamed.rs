//! Files that get their name when they are complete, for tools that copy: a reader, and a crash of
//! the writer, never leaves half a file under its name (as `O_TMPFILE` and linkat(2)).

use crate::tree::{FileHandle, VolumeTree};
use crate::{Client, Created};
use tatami_wire::batch::BatchOp;
use tatami_wire::meta::{MetaOp, MetaReply, RenameMode};
use tatami_wire::{Access, Cred, Errno, Ino, NAME_MAX, SetAttr};

/// An inode, the directory, and the name that the inode is to get in it.
pub type NameTarget = (Ino, Ino, Vec<u8>);

/// A file without a name, open for writing. Without [`UnnamedFile::publish`] it is deleted.
pub struct UnnamedFile {
    tree: VolumeTree,
    handle: Option<FileHandle>,
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
}

/// Each method fails with the error of the system call that it resembles.
#[allow(clippy::missing_errors_doc)] // said once, above
impl VolumeTree {
    /// Makes a file that gets the name `path` with [`UnnamedFile::publish`].
    pub fn create_unnamed(&self, path: &[u8], mode: u16, umask: u16) -> Result<UnnamedFile, Errno> {
        let (dir, name) = self.resolve_parent(path)?;
        let made = self.client().tmpfile(self.cred(), dir, mode, umask, Access::WRITE)?;
        self.open_unnamed(dir, name, made)
    }

    /// Returns the file that [`Client::create_unnamed_many`] has made for `name` in `dir`.
    pub fn open_unnamed(&self, dir: Ino, name: &[u8], made: Created) -> Result<UnnamedFile, Errno> {
        let ino = made.attr.ino;
        let (tree, name) = (self.clone(), name.to_vec());
        // Before the open, which may fail: the drop of this value then deletes the file.
        let mut file = UnnamedFile { tree, handle: None, dir, name, ino };
        file.handle = Some(self.open_created(made)?);
        Ok(file)
    }
}

/// Each method fails with the error of the system call that it resembles.
#[allow(clippy::missing_errors_doc)] // said once, above
impl UnnamedFile {
    /// Returns its inode number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns its bytes.
    ///
    /// # Panics
    /// Never: only a method that takes the file itself takes the handle.
    pub fn handle(&mut self) -> &mut FileHandle {
        self.handle.as_mut().expect("the handle is taken together with the file")
    }

    /// Ends the writing, sets the attributes `set`, and gives the file its name. With `replace`, an
    /// existing file of that name is replaced in one step; otherwise it is `EEXIST`.
    pub fn publish(mut self, set: Option<SetAttr>, replace: bool) -> Result<(), Errno> {
        if let Some(handle) = self.handle.take() {
            // Before the name: whoever finds the name must find the size, too.
            handle.close()?;
        }
        let (client, cred) = (self.tree.client(), self.tree.cred());
        if let Some(set) = set {
            client.setattr(cred, self.ino, set)?;
        }
        // Mostly the name is free; if not, the link says so at the cost of one request.
        match client.link(cred, self.ino, self.dir, &self.name) {
            Err(Errno::EEXIST) if replace => self.replace_name()?,
            linked => _ = linked?,
        }
        self.forget_file();
        Ok(())
    }

    /// Ends the writing of one of many files. The caller sends the returned operation, and then
    /// gives the file its name with [`Client::link_many`].
    pub fn close_deferred(&mut self) -> Result<BatchOp, Errno> {
        let handle = self.handle.take().ok_or(Errno::EBADF)?;
        let (flushed, commit) = handle.close_deferred();
        flushed.map(|()| commit)
    }

    /// Returns the directory and the name that the file is to get.
    pub fn target(&self) -> (Ino, &[u8]) {
        (self.dir, &self.name)
    }

    /// The file has its name: nothing is left to delete.
    pub fn forget_file(mut self) {
        self.ino = Ino(0);
    }

    /// Replaces the entry of the name.
    fn replace_name(&self) -> Result<(), Errno> {
        let target = (self.ino, self.dir, self.name.clone());
        let replaced = self.tree.client().replace_many(self.tree.cred(), vec![target]);
        replaced.into_iter().next().unwrap_or(Err(Errno::EPROTO))
    }
}

/// Returns the name that a file has for a moment before it replaces `name`: a rename is the one
/// operation that replaces in one step. No other file has the inode's number, so the name is free.
fn temporary_name(ino: Ino, name: &[u8]) -> Vec<u8> {
    let number = format!(".{:x}", ino.0);
    let stem = &name[..name.len().min(NAME_MAX - 1 - number.len())];
    [b".", stem, number.as_bytes()].concat()
}

impl Drop for UnnamedFile {
    /// Deletes the file at once. Without this the servers delete it when the session ends.
    fn drop(&mut self) {
        // The handle first: its commit must not come after the file is gone.
        drop(self.handle.take());
        if self.ino != Ino(0)
            && let Err(error) = self.tree.client().release_inode(self.ino)
        {
            tracing::debug!(ino = %self.ino, %error, "an unfinished file stays until the session ends");
        }
    }
}

/// Each method does for each item the operation of the same name, and returns a result for each.
/// Items of one directory that are on one executor share a request.
impl Client {
    /// Makes files without a name, open for writing; see [`UnnamedFile`]. Each item is the name
    /// that the file is to get in `parent`, and its permission bits. The name selects the executor,
    /// so that the later link concerns no other.
    pub fn create_unnamed_many(
        &self,
        cred: &Cred,
        parent: Ino,
        new: Vec<(Vec<u8>, u16)>,
        umask: u16,
    ) -> Vec<Result<Created, Errno>> {
        let layout = self.new_layout();
        let operations = new.into_iter().map(|(name, mode)| {
            let (name, open) = (name.into(), Access::WRITE);
            BatchOp::Tmpfile { parent, name, layout, mode, umask, open }
        });
        let made = self.run_batch(cred, operations.collect()).into_iter().map(|made| match made? {
            MetaReply::Created { attr, cap, created } => Ok(Created { attr, cap, created }),
            _ => Err(Errno::EPROTO),
        });
        made.collect()
    }

    /// Gives each inode a name in a directory, as [`Client::link`].
    pub fn link_many(&self, cred: &Cred, links: Vec<NameTarget>) -> Vec<Result<(), Errno>> {
        let operations = links.into_iter().map(|(ino, parent, name)| BatchOp::Link {
            ino,
            parent,
            name: name.into(),
        });
        let linked = self.run_batch(cred, operations.collect());
        linked.into_iter().map(|linked| linked.map(drop)).collect()
    }

    /// Gives each inode the name of an existing file, which it replaces in one step.
    pub fn replace_many(&self, cred: &Cred, links: Vec<NameTarget>) -> Vec<Result<(), Errno>> {
        let hidden: Vec<NameTarget> =
            links.iter().map(|(ino, dir, name)| (*ino, *dir, temporary_name(*ino, name))).collect();
        let mut results = self.link_many(cred, hidden.clone());
        // A batch has no renames, so these are sent one by one, many at a time.
        let (mut renames, mut which) = (Vec::new(), Vec::new());
        for (at, ((_, dir, name), (_, _, hidden))) in links.into_iter().zip(&hidden).enumerate() {
            if results[at].is_ok() {
                which.push(at);
                renames.push(MetaOp::Rename {
                    parent: dir,
                    name: hidden.clone().into(),
                    new_parent: dir,
                    new_name: name.into(),
                    mode: RenameMode::Replace,
                    keep: false,
                });
            }
        }
        for (at, renamed) in which.into_iter().zip(self.send_meta_several(cred, renames)) {
            if renamed.is_err() {
                // The error of the rename is the one to report, not that of the clean-up.
                let (_, dir, name) = &hidden[at];
                let _ = self.unlink(cred, *dir, name, false);
            }
            results[at] = renamed.map(drop);
        }
        results
    }
}
