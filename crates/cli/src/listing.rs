//! The output of `ls` and `stat`.

use crate::error::CommandResult;
use crate::json::{self, NameFields};
use crate::site_tree;
use crate::term::{self, TermOutput};
use crate::volume_path::AnyPath;
use serde_json::json;
use std::collections::HashMap;
use std::io::Write;
use tatami_client::tree::{VolumeTree, join_path};
use tatami_cluster::VolumeFile;
use tatami_remote::{SiteEntry, SiteFile};
use tatami_wire::{Attr, Errno, InodeKind, Timestamp, XattrClass};

/// One line of a listing.
pub struct ListingRow {
    /// The name; for a path that is no directory, the path.
    pub name: Vec<u8>,
    /// The path as given, if it is no entry of a directory.
    pub given: Option<AnyPath>,
    /// The attributes.
    pub attr: Attr,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// A directory with its entries, or one file.
pub struct FileListing {
    /// The path.
    pub path: AnyPath,
    /// The rows are the entries of a directory.
    pub is_dir: bool,
    /// The entries, by name.
    pub rows: Vec<ListingRow>,
}

/// How a listing is printed.
pub struct ListingStyle {
    pub long: bool,
    /// Sizes like 1.5K.
    pub human: bool,
    pub inode: bool,
    pub classify: bool,
    /// Names that begin with a dot are listed, too.
    pub hidden: bool,
    pub order: ListingOrder,
    pub reverse: bool,
    /// The columns of the terminal; `None`: one name a line.
    pub width: Option<usize>,
}

/// The order of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingOrder {
    Name,
    Time,
    Size,
}

/// Blanks between two columns of names.
const GAP: usize = 2;

impl FileListing {
    /// Returns an empty listing, for the files among the arguments of a command.
    pub fn of_arguments() -> FileListing {
        FileListing { path: AnyPath::Volume(Vec::new()), is_dir: false, rows: Vec::new() }
    }
}

/// Reads the entries of a directory, or one row for the path itself if `itself` is set. With `dots`
/// a directory has the rows `.` and `..`.
///
/// # Errors
/// Those of the volume.
pub fn read_listing(
    tree: &VolumeTree,
    path: &[u8],
    itself: bool,
    dots: bool,
) -> Result<FileListing, Errno> {
    // As in ls(1), a link to a directory lists the directory.
    let own = tree.stat(path, false)?;
    let is_link = own.kind == InodeKind::Symlink;
    let followed = if is_link && !itself { tree.stat(path, true).unwrap_or(own) } else { own };
    let is_dir = followed.kind == InodeKind::Dir && !itself;
    let mut rows = Vec::new();
    if is_dir {
        for name in [b".".as_slice(), b".."].into_iter().filter(|_| dots) {
            let attr = tree.stat(&join_path(path, name), true)?;
            rows.push(ListingRow { name: name.to_vec(), given: None, attr, target: None });
        }
        for entry in tree.read_dir(path, true)? {
            let below = join_path(path, &entry.name);
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
            rows.push(ListingRow { name: entry.name.into_vec(), given: None, attr, target });
        }
    } else {
        let attr = if is_link { tree.stat(path, false)? } else { followed };
        let target = link_target(tree, path, &attr);
        let given = Some(AnyPath::Volume(path.to_vec()));
        rows.push(ListingRow { name: path.to_vec(), given, attr, target });
    }
    Ok(FileListing { path: AnyPath::Volume(path.to_vec()), is_dir, rows })
}

/// As [`read_listing`], of a path on another site.
///
/// # Errors
/// Those of the site.
pub fn read_site_listing(file: &SiteFile, itself: bool, dots: bool) -> Result<FileListing, Errno> {
    let row = |entry: SiteEntry, given: Option<AnyPath>| -> Result<ListingRow, Errno> {
        let attr = site_tree::attr_of(&entry.attr)?;
        let target = entry.target.map(|target| target.into_vec());
        Ok(ListingRow { name: entry.name.into_vec(), given, attr, target })
    };
    let path = AnyPath::Site(file.clone());
    let mut own = row(site_tree::look_at(file, false)?, Some(path.clone()))?;
    own.name = site_tree::path_of(file).to_vec();
    let is_link = own.attr.kind == InodeKind::Symlink;
    let followed = match is_link && !itself {
        true => site_tree::look_at(file, true).and_then(|entry| site_tree::attr_of(&entry.attr)),
        false => Ok(own.attr.clone()),
    };
    if itself || followed.map_or(own.attr.kind, |attr| attr.kind) != InodeKind::Dir {
        return Ok(FileListing { path, is_dir: false, rows: vec![own] });
    }
    let mut rows = Vec::new();
    for name in [b".".as_slice(), b".."].into_iter().filter(|_| dots) {
        let mut dot = row(site_tree::look_at(&site_tree::append_name(file, name), true)?, None)?;
        dot.name = name.to_vec();
        rows.push(dot);
    }
    for entry in site_tree::list_dir(file)? {
        rows.push(row(entry, None)?);
    }
    Ok(FileListing { path, is_dir: true, rows })
}

/// Leaves out hidden names, and sorts the rows.
pub fn select_rows(found: &mut FileListing, style: &ListingStyle) {
    if found.is_dir && !style.hidden {
        found.rows.retain(|row| !row.name.starts_with(b"."));
    }
    let by_name = |a: &ListingRow, b: &ListingRow| a.name.cmp(&b.name);
    match style.order {
        ListingOrder::Name => found.rows.sort_by(by_name),
        ListingOrder::Time => {
            found.rows.sort_by(|a, b| b.attr.mtime.cmp(&a.attr.mtime).then(by_name(a, b)));
        }
        ListingOrder::Size => {
            found.rows.sort_by(|a, b| b.attr.size.cmp(&a.attr.size).then(by_name(a, b)));
        }
    }
    if style.reverse {
        found.rows.reverse();
    }
}

/// Returns the target of a symbolic link of the volume.
pub fn link_target(tree: &VolumeTree, path: &[u8], attr: &Attr) -> Option<Vec<u8>> {
    (attr.kind == InodeKind::Symlink).then(|| tree.read_link(path).unwrap_or_default())
}

impl ListingRow {
    /// Returns the object for `ls --json`.
    pub fn to_json(&self, found: &FileListing) -> serde_json::Value {
        let path = match &self.given {
            Some(given) => given.clone(),
            None => found.path.join(&self.name),
        };
        let mut value = attr_json(&path, &self.attr);
        if let Some(target) = &self.target {
            NameFields::new("target", &target[..]).add_to(&mut value);
        }
        value
    }
}

/// Returns the name of a kind.
fn kind_name(kind: InodeKind) -> &'static str {
    match kind {
        InodeKind::File => "file",
        InodeKind::Dir => "directory",
        InodeKind::Symlink => "symlink",
        InodeKind::Fifo => "fifo",
        InodeKind::Socket => "socket",
        InodeKind::CharDev => "character device",
        InodeKind::BlockDev => "block device",
    }
}

/// Returns a time as JSON.
pub fn time_json(time: Timestamp) -> serde_json::Value {
    // A program can set any time. One that a number does not hold is 285 million years away.
    let sec = time.sec.clamp(-json::EXACT_MAX, json::EXACT_MAX);
    json!({ "sec": sec, "nsec": time.nsec })
}

/// Returns attributes as JSON, for scripts.
pub fn attr_json(path: &AnyPath, attr: &Attr) -> serde_json::Value {
    let mut value = json!({
        "ino": json::wide_number(attr.ino.0),
        "kind": kind_name(attr.kind),
        "mode": format!("{:04o}", attr.mode),
        "nlink": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": json::wide_number(attr.size),
        "blocks": attr.blocks,
        "mtime": time_json(attr.mtime),
        "ctime": time_json(attr.ctime),
        "atime": time_json(attr.atime),
        "btime": time_json(attr.btime),
    });
    let bytes = match path {
        AnyPath::Site(file) => {
            value["site"] = json!(file.site.to_string());
            site_tree::path_of(file).to_vec()
        }
        AnyPath::Volume(path) => path.clone(),
        AnyPath::Local(_) => path.to_bytes(),
    };
    NameFields::new("path", &bytes[..]).add_to(&mut value);
    value
}

/// Returns the mode as `drwxr-xr-x`.
pub fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind {
        InodeKind::File => '-',
        InodeKind::Dir => 'd',
        InodeKind::Symlink => 'l',
        InodeKind::Fifo => 'p',
        InodeKind::Socket => 's',
        InodeKind::CharDev => 'c',
        InodeKind::BlockDev => 'b',
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
    if attr.xattr_class == XattrClass::Acl {
        text.push('+');
    }
    text
}

/// Formats a time in the local zone, to the minute.
pub fn time_text(time: Timestamp) -> String {
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
struct AccountNames(HashMap<u32, String>);

impl AccountNames {
    fn load_file(path: &str) -> AccountNames {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let entry = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            Some((fields.nth(1)?.parse().ok()?, name))
        };
        AccountNames(text.lines().filter_map(entry).collect())
    }

    /// No names: those of another site are not known here.
    fn unknown() -> AccountNames {
        AccountNames(HashMap::new())
    }

    /// Returns the names of users and of groups for a path.
    fn load_for(path: &AnyPath) -> (AccountNames, AccountNames) {
        match path {
            AnyPath::Site(_) => (AccountNames::unknown(), AccountNames::unknown()),
            _ => (AccountNames::load_file("/etc/passwd"), AccountNames::load_file("/etc/group")),
        }
    }

    fn name_of(&self, id: u32) -> String {
        self.0.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

/// Returns the mark that `-F` appends to a name.
fn kind_mark(attr: &Attr) -> &'static str {
    match attr.kind {
        InodeKind::Dir => "/",
        InodeKind::Symlink => "@",
        InodeKind::Fifo => "|",
        InodeKind::Socket => "=",
        InodeKind::File if attr.mode & 0o111 != 0 => "*",
        InodeKind::File | InodeKind::CharDev | InodeKind::BlockDev => "",
    }
}

impl ListingStyle {
    /// Returns the name with what the options add. In a long listing a link shows its target.
    fn format_name(&self, row: &ListingRow) -> String {
        let mut name = match &row.given {
            Some(given) => given.to_string(),
            None => term::escape_name(&row.name),
        };
        if self.inode {
            name = format!("{} {name}", row.attr.ino.0);
        }
        if let Some(target) = row.target.as_ref().filter(|_| self.long) {
            return format!("{name} -> {}", term::escape_name(target));
        }
        if self.classify {
            name.push_str(kind_mark(&row.attr));
        }
        name
    }
}

/// Arranges names in columns, down and then across, as many as fit `width`.
fn arrange_columns(names: &[String], width: usize) -> String {
    let lengths: Vec<usize> = names.iter().map(|name| name.chars().count()).collect();
    let widths_of = |lines: usize| -> Vec<usize> {
        lengths.chunks(lines).map(|part| part.iter().max().copied().unwrap_or(0)).collect()
    };
    let fits = |lines: &usize| {
        let widths = widths_of(*lines);
        widths.iter().sum::<usize>() + GAP * (widths.len() - 1) <= width
    };
    let lines = (1..=names.len()).find(fits).unwrap_or(names.len());
    let widths = widths_of(lines.max(1));
    let mut text = String::new();
    for line in 0..lines {
        let mut row = String::new();
        for (column, width) in widths.iter().enumerate() {
            let Some(name) = names.get(column * lines + line) else { continue };
            row.push_str(name);
            row.push_str(&" ".repeat(width - lengths[column * lines + line] + GAP));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Prints a listing, short or long.
///
/// # Errors
/// Those of the output.
pub fn print_listing(
    out: &mut TermOutput,
    found: &FileListing,
    style: &ListingStyle,
) -> CommandResult {
    if !style.long {
        let names: Vec<String> = found.rows.iter().map(|row| style.format_name(row)).collect();
        match style.width {
            Some(width) => write!(out, "{}", arrange_columns(&names, width))?,
            None => names.iter().try_for_each(|name| writeln!(out, "{name}"))?,
        }
        return Ok(());
    }
    let (users, groups) = AccountNames::load_for(&found.path);
    let none = AccountNames::unknown();
    let is_there = |row: &ListingRow| row.given.as_ref().is_some_and(AnyPath::is_site);
    let lines: Vec<[String; 7]> = found
        .rows
        .iter()
        .map(|row| {
            let size = match row.attr.kind {
                InodeKind::CharDev | InodeKind::BlockDev => {
                    format!("{}, {}", libc::major(row.attr.rdev), libc::minor(row.attr.rdev))
                }
                _ if style.human => term::format_short_size(row.attr.size),
                _ => row.attr.size.to_string(),
            };
            [
                mode_text(&row.attr),
                row.attr.nlink.to_string(),
                if is_there(row) { &none } else { &users }.name_of(row.attr.uid),
                if is_there(row) { &none } else { &groups }.name_of(row.attr.gid),
                size,
                time_text(row.attr.mtime),
                style.format_name(row),
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
    out: &mut TermOutput,
    path: &AnyPath,
    attr: &Attr,
    target: Option<&[u8]>,
    volume: Option<&VolumeFile>,
) -> CommandResult {
    let (users, groups) = AccountNames::load_for(path);
    let mut name = path.to_string();
    if let Some(target) = target {
        name = format!("{name} -> {}", term::escape_name(target));
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
        users.name_of(attr.uid),
        attr.uid,
        groups.name_of(attr.gid),
        attr.gid
    )?;
    if let Some(volume) = volume.filter(|_| attr.kind == InodeKind::File) {
        let nodes: Vec<String> = attr
            .layout
            .all_objects()
            .map(|(node, _)| volume.node(node).map_or(node.to_string(), |n| n.name.clone()))
            .collect();
        let place = match attr.layout {
            layout if layout.is_inline() => "beside the inode".to_owned(),
            layout if layout.base().is_in_region() => {
                format!("{}, in a region of its device", nodes.join(", "))
            }
            _ => nodes.join(", "),
        };
        writeln!(out, "  stored  {place}")?;
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

    fn attr(kind: InodeKind, mode: u16) -> Attr {
        Attr { mode, ..Attr::with_defaults(Ino(1), kind) }
    }

    #[test]
    fn modes_read_as_in_ls() {
        for (kind, mode, text) in [
            (InodeKind::File, 0o644, "-rw-r--r--"),
            (InodeKind::Dir, 0o1777, "drwxrwxrwt"),
            (InodeKind::File, 0o4755, "-rwsr-xr-x"),
            (InodeKind::File, 0o6644, "-rwSr-Sr--"),
            (InodeKind::Symlink, 0o777, "lrwxrwxrwx"),
            (InodeKind::Dir, 0o1000, "d--------T"),
        ] {
            assert_eq!(mode_text(&attr(kind, mode)), text);
        }
    }

    #[test]
    fn names_fill_columns_as_in_ls() {
        let names = |all: &[&str]| all.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let all = names(&["a", "bbb", "cc", "d", "eeee"]);
        assert_eq!(arrange_columns(&all, 80), "a  bbb  cc  d  eeee\n");
        assert_eq!(arrange_columns(&all, 12), "a    d\nbbb  eeee\ncc\n");
        assert_eq!(arrange_columns(&all, 1), "a\nbbb\ncc\nd\neeee\n");
        assert_eq!(arrange_columns(&[], 80), "");
    }

    #[test]
    fn times_have_the_usual_form() {
        let text = time_text(Timestamp::from_sec(1_000_000_000));
        assert!(text.starts_with("2001-09-") && text.len() == 16, "{text}");
    }
}
