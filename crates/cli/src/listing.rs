//! The output of `ls` and `stat`.

use crate::error::Outcome;
use crate::term::{self, Out};
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;
use tatami_client::tree::{Tree, join};
use tatami_cluster::VolumeFile;
use tatami_wire::{Attached, Attr, Errno, Kind, Timestamp};

/// One line of a listing.
pub struct Row {
    /// The name; for a path that is no directory, the path as given.
    pub name: Vec<u8>,
    /// The attributes.
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// A directory with its entries, or one file.
pub struct Found {
    /// The path.
    pub path: Vec<u8>,
    /// The rows are the entries of a directory.
    pub is_dir: bool,
    /// The entries, by name.
    pub rows: Vec<Row>,
}

/// Reads the entries of a directory, or one row for the path itself if `itself` is set.
///
/// # Errors
/// Those of the volume.
pub fn look(tree: &Tree, path: &[u8], itself: bool) -> Result<Found, Errno> {
    // As in ls(1), a link to a directory lists the directory.
    let own = tree.stat(path, false)?;
    let is_link = own.kind == Kind::Symlink;
    let followed = if is_link && !itself { tree.stat(path, true).unwrap_or(own) } else { own };
    let is_dir = followed.kind == Kind::Dir && !itself;
    let mut rows = Vec::new();
    if is_dir {
        for entry in tree.read_dir(path, true)? {
            let below = join(path, &entry.name);
            let attr = match entry.attr {
                Some(attr) => attr,
                None => match tree.stat(&below, false) {
                    Ok(attr) => attr,
                    // Removed since the listing.
                    Err(Errno::ENOENT) => continue,
                    Err(e) => return Err(e),
                },
            };
            let target = link_target(tree, &below, &attr);
            rows.push(Row { name: entry.name.into_vec(), attr, target });
        }
    } else {
        let attr = if is_link { tree.stat(path, false)? } else { followed };
        let target = link_target(tree, path, &attr);
        rows.push(Row { name: path.to_vec(), attr, target });
    }
    Ok(Found { path: path.to_vec(), is_dir, rows })
}

fn link_target(tree: &Tree, path: &[u8], attr: &Attr) -> Option<Vec<u8>> {
    (attr.kind == Kind::Symlink).then(|| tree.read_link(path).unwrap_or_default())
}

impl Row {
    /// Returns the object for `ls --json`.
    pub fn json(&self, found: &Found) -> serde_json::Value {
        let path = if found.is_dir { join(&found.path, &self.name) } else { self.name.clone() };
        let mut value = attr_json(&path, &self.attr);
        if let Some(target) = &self.target {
            value["target"] = json!(String::from_utf8_lossy(target));
        }
        value
    }
}

/// Returns the name of a kind.
fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::CharDev => "character device",
        Kind::BlockDev => "block device",
    }
}

/// Returns attributes as JSON, for scripts. Bytes of names that are not UTF-8 become U+FFFD.
pub fn attr_json(path: &[u8], attr: &Attr) -> serde_json::Value {
    let time = |t: Timestamp| json!({ "sec": t.sec, "nsec": t.nsec });
    json!({
        "path": String::from_utf8_lossy(path),
        "ino": attr.ino.0,
        "kind": kind_name(attr.kind),
        "mode": format!("{:04o}", attr.mode),
        "nlink": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "blocks": attr.blocks,
        "mtime": time(attr.mtime),
        "ctime": time(attr.ctime),
        "atime": time(attr.atime),
        "btime": time(attr.btime),
    })
}

/// Returns the mode as `drwxr-xr-x`.
pub fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        Kind::File => '-',
        Kind::Dir => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::CharDev => 'c',
        Kind::BlockDev => 'b',
    };
    let mut text = String::from(kind);
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (i, (bit, with, without)) in special.into_iter().enumerate() {
        let bits = attr.mode >> (6 - 3 * i);
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & bit != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    if attr.attached == Attached::Acl {
        text.push('+');
    }
    text
}

/// Formats a time in the local zone, to the minute.
fn time_text(time: Timestamp) -> String {
    // SAFETY: `tm` is plain data for which all zero is valid, and both
    // pointers live through the call.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&time.sec, &mut tm).is_null() {
            return format!("@{}", time.sec);
        }
        tm
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}",
        i64::from(tm.tm_year) + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min
    )
}

/// Names of users or groups from a local file; other ids are printed as numbers.
struct Names(HashMap<u32, String>);

impl Names {
    fn read(path: &str) -> Names {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let entry = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        Names(text.lines().filter_map(entry).collect())
    }

    fn of(&self, id: u32) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

/// Prints a listing, short or long.
///
/// # Errors
/// Those of the output.
pub fn print(out: &mut Out, found: &Found, long: bool, human: bool) -> Outcome {
    if !long {
        for row in &found.rows {
            writeln!(out, "{}", term::safe(&row.name))?;
        }
        return Ok(());
    }
    let (users, groups) = (Names::read("/etc/passwd"), Names::read("/etc/group"));
    let lines: Vec<[String; 7]> = found
        .rows
        .iter()
        .map(|row| {
            let size = match row.attr.kind {
                Kind::CharDev | Kind::BlockDev => {
                    format!("{}, {}", libc::major(row.attr.rdev), libc::minor(row.attr.rdev))
                }
                _ if human => term::size(row.attr.size),
                _ => row.attr.size.to_string(),
            };
            let mut name = term::safe(&row.name);
            if let Some(target) = &row.target {
                name = format!("{name} -> {}", term::safe(target));
            }
            [
                mode_text(&row.attr),
                row.attr.nlink.to_string(),
                users.of(row.attr.uid),
                groups.of(row.attr.gid),
                size,
                time_text(row.attr.mtime),
                name,
            ]
        })
        .collect();
    let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
    let w: Vec<usize> = (0..6).map(width).collect();
    for [mode, links, user, group, size, time, name] in &lines {
        let (w0, w1, w2, w3, w4) = (w[0], w[1], w[2], w[3], w[4]);
        writeln!(out, "{mode:w0$} {links:>w1$} {user:w2$} {group:w3$} {size:>w4$} {time} {name}")?;
    }
    Ok(())
}

/// Prints one file's attributes as text.
pub fn print_attr(
    out: &mut Out,
    tree: &Tree,
    path: &[u8],
    attr: &Attr,
    volume: &VolumeFile,
) -> Outcome {
    let (users, groups) = (Names::read("/etc/passwd"), Names::read("/etc/group"));
    let mut name = format!(":{}", term::safe(path));
    if let Some(target) = link_target(tree, path, attr) {
        name = format!("{name} -> {}", term::safe(&target));
    }
    writeln!(out, "{name}")?;
    writeln!(
        out,
        "  kind    {}, {} bytes, {} blocks",
        kind_name(attr.kind),
        attr.size,
        attr.blocks
    )?;
    writeln!(out, "  inode   {}, {} links", attr.ino, attr.nlink)?;
    writeln!(
        out,
        "  access  {} ({:04o}), {} ({}), {} ({})",
        mode_text(attr),
        attr.mode,
        users.of(attr.uid),
        attr.uid,
        groups.of(attr.gid),
        attr.gid
    )?;
    if attr.kind == Kind::File {
        let nodes: Vec<String> = attr
            .layout
            .pieces()
            .map(|(node, _)| volume.node(node).map_or(node.to_string(), |n| n.name.clone()))
            .collect();
        writeln!(out, "  stored  {}", nodes.join(", "))?;
    }
    for (what, time) in [
        ("changed", attr.mtime),
        ("inode", attr.ctime),
        ("read", attr.atime),
        ("created", attr.btime),
    ] {
        writeln!(out, "  {what:7} {}", time_text(time))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::Ino;

    fn attr(kind: Kind, mode: u16) -> Attr {
        Attr { mode, ..Attr::plain(Ino(1), kind) }
    }

    #[test]
    fn modes_read_as_in_ls() {
        for (kind, mode, text) in [
            (Kind::File, 0o644, "-rw-r--r--"),
            (Kind::Dir, 0o1777, "drwxrwxrwt"),
            (Kind::File, 0o4755, "-rwsr-xr-x"),
            (Kind::File, 0o6644, "-rwSr-Sr--"),
            (Kind::Symlink, 0o777, "lrwxrwxrwx"),
            (Kind::Dir, 0o1000, "d--------T"),
        ] {
            assert_eq!(mode_text(&attr(kind, mode)), text);
        }
    }

    #[test]
    fn times_have_the_usual_form() {
        let text = time_text(Timestamp::from_sec(1_000_000_000));
        assert!(text.starts_with("2001-09-") && text.len() == 16, "{text}");
    }
}
