//! Opens the bytes of files: here, and only here, the client chooses the kind of an open file.

use crate::Client;
use crate::data::DataFile;
use crate::file_bytes::FileBytes;
use crate::inline_bytes::InlineBytes;
use crate::local_object::LocalObject;
use crate::object_handle::{FileAccess, ObjectHandle};
use crate::remote_object::RemoteObject;
use crate::tiled_file::TiledFile;
use parking_lot::Mutex;
use std::sync::Arc;
use tatami_wire::object::REGION_MAX;
use tatami_wire::{Attr, Cap, Errno, Ino, Layout, NodeId, Piece};

/// Whether the daemon of this node has no file to hand over. An object in a region has none, but it
/// is one of the disk when it is too large for a region. A wrong answer is no error: a daemon asked
/// for the file makes one, and serves the bytes of any object.
fn is_likely_in_region(access: &FileAccess, piece: Piece) -> bool {
    piece.is_in_region() && access.opened.is_none_or(|(_, size)| size <= REGION_MAX)
}

impl Client {
    /// Opens the bytes of a file, as far as `cap` allows. Sends no request.
    ///
    /// # Errors
    /// `ENXIO` when the file's node is not in the cluster map; `ESTALE` for a second open of a
    /// create that is held back.
    pub fn open_data(self: &Arc<Self>, attr: &Attr, cap: Cap) -> Result<DataFile, Errno> {
        if attr.layout.is_inline() {
            let access = self.new_access(attr.ino, cap, None);
            // Only the create itself has no capability yet. Any other open has made the file.
            let held = match cap.has_signature() {
                true => None,
                false => Some(self.held.take_unopened(attr.ino).ok_or(Errno::ESTALE)?),
            };
            let bytes = Arc::new(InlineBytes::new(access.clone(), held));
            return Ok(DataFile::new(access, bytes));
        }
        self.open_layout(attr.ino, attr.layout, attr.size, cap)
    }

    /// As [`Client::open_data`], of a file that has objects.
    pub(crate) fn open_layout(
        self: &Arc<Self>,
        ino: Ino,
        layout: Layout,
        size: u64,
        cap: Cap,
    ) -> Result<DataFile, Errno> {
        if layout.is_tiled() {
            let access = self.new_access(ino, cap, None);
            let bytes = Arc::new(TiledFile::new(&access, layout)?);
            return Ok(DataFile::new(access, bytes));
        }
        let access = self.new_access(ino, cap, Some((layout, size)));
        let bytes = self.open_object_bytes(&access, layout.node(), layout.base())?;
        Ok(DataFile::new(access, bytes))
    }

    /// Opens the bytes of one object of a file. Sends no request.
    ///
    /// # Errors
    /// `ENXIO` when `node` is not in the cluster map.
    pub fn open_object(
        self: &Arc<Self>,
        ino: Ino,
        node: NodeId,
        piece: Piece,
        cap: Cap,
    ) -> Result<DataFile, Errno> {
        let access = self.new_access(ino, cap, None);
        let bytes = self.open_object_bytes(&access, node, piece)?;
        Ok(DataFile::new(access, bytes))
    }

    fn new_access(
        self: &Arc<Self>,
        ino: Ino,
        cap: Cap,
        opened: Option<(Layout, u64)>,
    ) -> Arc<FileAccess> {
        Arc::new(FileAccess { client: self.clone(), ino, cap: Mutex::new(cap), opened })
    }

    /// Opens one object of an open file, on this node or another; as [`Client::open_object`].
    pub(crate) fn open_object_bytes(
        &self,
        access: &Arc<FileAccess>,
        node: NodeId,
        piece: Piece,
    ) -> Result<Arc<dyn FileBytes>, Errno> {
        let peer = self.node_client(node)?.clone();
        let object = ObjectHandle { access: access.clone(), peer, piece };
        if self.home() == Some(node) && !is_likely_in_region(access, piece) {
            return Ok(Arc::new(LocalObject::new(object)));
        }
        let stream = self.streams.get_stream(access.ino, piece, &object.peer);
        Ok(Arc::new(RemoteObject::new(object, stream)))
    }
}
