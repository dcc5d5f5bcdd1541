//! Decides by the text of a path whether it is in the volume.

/// The rest of a path below a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PrefixMatch<'a> {
    /// The number of the prefix.
    pub(crate) prefix: usize,
    /// The path from the root of the volume. It may be empty.
    pub(crate) rest: &'a [u8],
}

/// Finds the prefix that an absolute path passes. `..` before the prefix removes the name before
/// it, as on a machine without symbolic links there.
pub(crate) fn match_prefix<'a>(
    prefixes: &[Vec<Vec<u8>>],
    path: &'a [u8],
) -> Option<PrefixMatch<'a>> {
    prefixes.iter().enumerate().find_map(|(prefix, names)| {
        let rest = match_names(names, path)?;
        Some(PrefixMatch { prefix, rest })
    })
}

fn match_names<'a>(names: &[Vec<u8>], path: &'a [u8]) -> Option<&'a [u8]> {
    // The depth in the machine's tree, and how many names of it are those of the prefix.
    let (mut depth, mut matched) = (0usize, 0usize);
    let mut at = 0;
    while at < path.len() {
        if path[at] == b'/' {
            at += 1;
            continue;
        }
        let end = path[at..].iter().position(|b| *b == b'/').map_or(path.len(), |n| at + n);
        match &path[at..end] {
            b"." => {}
            b".." => {
                depth = depth.saturating_sub(1);
                matched = matched.min(depth);
            }
            name => {
                if matched == depth && names.get(depth).is_some_and(|wanted| wanted == name) {
                    matched += 1;
                }
                depth += 1;
                if matched == depth && depth == names.len() {
                    return Some(&path[end..]);
                }
            }
        }
        at = end;
    }
    None
}

/// Returns the first name of a path, and the rest after it.
pub(crate) fn split_first(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = path.iter().position(|b| *b != b'/')?;
    let end = path[start..].iter().position(|b| *b == b'/').map_or(path.len(), |n| start + n);
    Some((&path[start..end], &path[end..]))
}

/// Returns `base/rest`, with one slash between both.
pub(crate) fn join(base: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut joined = base.to_vec();
    if !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    let start = rest.iter().position(|b| *b != b'/').unwrap_or(rest.len());
    joined.extend_from_slice(&rest[start..]);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(path: &str) -> Option<String> {
        let prefixes = [vec![b"mnt".to_vec(), b"t".to_vec()], vec![b"data".to_vec()]];
        let found = match_prefix(&prefixes, path.as_bytes())?;
        Some(format!("{}:{}", found.prefix, String::from_utf8_lossy(found.rest)))
    }

    #[test]
    fn a_path_is_in_the_volume_from_the_prefix_on() {
        assert_eq!(rest("/mnt/t/a/../b").as_deref(), Some("0:/a/../b"));
        assert_eq!(rest("//mnt/./t").as_deref(), Some("0:"));
        assert_eq!(rest("/mnt/t/").as_deref(), Some("0:/"));
        assert_eq!(rest("/data/x").as_deref(), Some("1:/x"));
        assert_eq!(rest("/mnt/tt"), None);
        assert_eq!(rest("/mnt"), None);
        assert_eq!(rest("/x/mnt/t"), None);
    }

    #[test]
    fn parents_before_the_prefix_are_followed() {
        assert_eq!(rest("/usr/../mnt/t/a").as_deref(), Some("0:/a"));
        assert_eq!(rest("/mnt/x/../t/a").as_deref(), Some("0:/a"));
        assert_eq!(rest("/../mnt/t").as_deref(), Some("0:"));
        assert_eq!(rest("/mnt/../t"), None);
    }

    #[test]
    fn paths_are_split_and_joined() {
        assert_eq!(split_first(b"//a/b"), Some((&b"a"[..], &b"/b"[..])));
        assert_eq!(split_first(b"a"), Some((&b"a"[..], &b""[..])));
        assert_eq!(split_first(b"//"), None);
        assert_eq!(join(b"/a", b"/b/"), b"/a/b/");
        assert_eq!(join(b"/", b"b"), b"/b");
    }
}
