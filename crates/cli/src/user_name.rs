//! Names of users, for messages.

/// Returns `user NAME`, or `user NUMBER` for a user without an entry in `/etc/passwd`.
pub fn describe_user(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match find_name(&passwd, uid) {
        Some(name) => format!("user {name}"),
        None => format!("user {uid}"),
    }
}

/// Returns the number of a user and of its group, by name or number; a number without an entry in
/// `/etc/passwd` has the group of the same number.
pub fn find_user(user: &str) -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find_numbers(&passwd, user).or_else(|| user.parse().ok().map(|uid| (uid, uid)))
}

fn find_numbers(passwd: &str, user: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields[..] else { return None };
        let is_meant = name == user || uid == user;
        is_meant.then_some((uid.parse().ok()?, gid.parse().ok()?))
    })
}

fn find_name(passwd: &str, uid: u32) -> Option<&str> {
    // passwd(5): name:password:uid:…
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_the_table() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\nanna:x:4001:4001::/:/bin/sh\n";
        assert_eq!(find_name(table, 0), Some("root"));
        assert_eq!(find_name(table, 4001), Some("anna"));
        assert_eq!(find_name(table, 1), None);
        let table = "anna:x:4001:4002::/:/bin/sh\n";
        assert_eq!(find_numbers(table, "anna"), Some((4001, 4002)));
        assert_eq!(find_numbers(table, "4001"), Some((4001, 4002)));
        assert_eq!(find_numbers(table, "otto"), None);
        assert_eq!(find_user("4294967288"), Some((u32::MAX - 7, u32::MAX - 7)));
        assert_eq!(describe_user(u32::MAX - 7), format!("user {}", u32::MAX - 7));
    }
}
