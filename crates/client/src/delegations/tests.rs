//! The delegation cache and the kernel's copies are never old, in any order of events.

use super::*;
use crate::kernel_table::NamesExpired;
use tatami_wire::delegation::DelegatedEntries;
use tatami_wire::meta::Bytes;
use tatami_wire::partition::HashRange;

const TERM: Duration = Duration::from_secs(600);
const DIR: Ino = Ino(1);

fn attr(ino: Ino, kind: InodeKind, version: u64) -> Attr {
    Attr { mode: 0o755, version, ..Attr::with_defaults(ino, kind) }
}

impl DelegationCache {
    fn answer(&self, op: &MetaOp) -> Option<MetaResult> {
        super::answer_from_cache(op, |_| [Some(self), None], |ino| self.cached_attr(ino))
    }
}

fn create(n: u64) -> MetaOp {
    MetaOp::Create {
        parent: DIR,
        name: name(n),
        node: tatami_wire::meta::InodeTemplate::Fifo,
        mode: 0,
        umask: 0,
        exclusive: true,
        open: None,
    }
}

fn on() -> DelegationCache {
    let delegations = DelegationCache::default();
    delegations.begin_connection();
    delegations.extend_term(uptime(), TERM);
    delegations
}

fn name(n: u64) -> Bytes {
    Bytes::from(n.to_string().into_bytes())
}

fn lookup(n: u64) -> MetaOp {
    MetaOp::Lookup { parent: DIR, name: name(n) }
}

fn unlink(n: u64) -> MetaOp {
    MetaOp::Unlink { parent: DIR, name: name(n), keep: false }
}

fn list() -> MetaOp {
    MetaOp::ReadDir { dir: DIR, after: 0, limit: 1000, plus: true }
}

/// Returns the reply to a listing of these names.
fn listing(names: &HashMap<u64, Ino>) -> MetaReply {
    let entry = |(n, ino): (&u64, &Ino)| {
        let attr = Some(attr(*ino, InodeKind::File, 1));
        DirEntry { name: name(*n), ino: *ino, kind: InodeKind::File, cookie: n + 1, attr }
    };
    let entries = names.iter().map(entry).collect();
    MetaReply::Entries { entries, end: true, parent: DIR, upto: u64::MAX >> 1 }
}

fn get(ino: Ino) -> MetaOp {
    MetaOp::GetAttr { ino }
}

fn granted(changed: &[Ino], delegated: &[Ino], dir: Option<Attr>) -> DelegationGrant {
    let (changed, delegated) = (changed.to_vec(), delegated.to_vec());
    DelegationGrant {
        changed,
        delegated,
        has_path: false,
        dir: dir.map(Box::new),
        partition: None,
        delegated_entries: DelegatedEntries::default(),
    }
}

fn part(version: u64) -> Box<PartitionAttr> {
    Box::new(PartitionAttr {
        attr: attr(DIR, InodeKind::Dir, version),
        range: HashRange { from: 0, bits: 4 },
    })
}

fn found(ino: Ino) -> MetaReply {
    MetaReply::Attr(attr(ino, InodeKind::File, 1))
}

#[test]
fn what_is_delegated_needs_no_question() {
    let d = on();
    let asked = d.begin_request(&lookup(5));
    d.finish_request(
        &lookup(5),
        asked,
        Ok(&found(Ino(5))),
        Some(&granted(&[], &[DIR, Ino(5)], None)),
    );
    assert_eq!(d.answer(&lookup(5)), Some(Ok(found(Ino(5)))));
    assert_eq!(d.answer(&get(Ino(5))), Some(Ok(found(Ino(5)))));
    assert_eq!(d.answer(&lookup(6)), None);
    let asked = d.begin_request(&lookup(6));
    d.finish_request(&lookup(6), asked, Err(Errno::ENOENT), Some(&granted(&[], &[DIR], None)));
    assert_eq!(d.answer(&lookup(6)), Some(Err(Errno::ENOENT)));
    // Facts that were not delegated are not kept.
    let asked = d.begin_request(&lookup(7));
    d.finish_request(&lookup(7), asked, Ok(&found(Ino(7))), Some(&granted(&[], &[], None)));
    assert_eq!((d.answer(&lookup(7)), d.answer(&get(Ino(7)))), (None, None));
    d.handle_recall(&[Ino(5)], &[]);
    assert_eq!((d.answer(&lookup(5)), d.answer(&get(Ino(5)))), (None, None));
    assert_eq!(d.answer(&lookup(6)), Some(Err(Errno::ENOENT)));
    d.end_connection();
    assert_eq!(d.answer(&lookup(6)), None);
}

#[test]
fn what_is_listed_needs_no_question() {
    let d = on();
    let names = HashMap::from([(1, Ino(11)), (2, Ino(12))]);
    let reply = listing(&names);
    let MetaReply::Entries { entries, .. } = &reply else { panic!("a listing") };
    // The second file's attributes are not delegated, whichever comes second.
    let (of_first, of_second) = (entries[0].clone(), entries[1].clone());
    let mut granted = granted(&[], &[DIR], None);
    granted.delegated_entries = [true, false].into_iter().collect();
    let asked = d.begin_request(&list());
    d.finish_request(&list(), asked, Ok(&reply), Some(&granted));
    let find = |entry: &DirEntry| MetaOp::LookupEntry { parent: DIR, name: entry.name.clone() };
    assert_eq!(d.answer(&get(of_first.ino)), Some(Ok(found(of_first.ino))));
    assert_eq!(d.answer(&find(&of_first)), Some(Ok(found(of_first.ino))));
    assert_eq!(d.answer(&get(of_second.ino)), None);
    assert_eq!(d.answer(&find(&of_second)), Some(Ok(MetaReply::Referral(of_second.ino))));
    d.handle_recall(&[DIR], &[]);
    assert_eq!(d.answer(&find(&of_first)), None);
    // Of a directory that is not delegated, only the entries with a bit are known.
    granted.delegated.clear();
    let asked = d.begin_request(&list());
    d.handle_recall(&[of_first.ino], &[]);
    d.finish_request(&list(), asked, Ok(&reply), Some(&granted));
    assert_eq!((d.answer(&find(&of_second)), d.answer(&get(of_first.ino))), (None, None));
}

#[test]
fn a_partition_is_known_until_it_changes() {
    let d = on();
    let told = Arc::new(Told::default());
    let kernel: Arc<dyn KernelCache> = told.clone();
    d.set_kernel(&kernel);
    let with = |changed: &[Ino], version| DelegationGrant {
        partition: Some(part(version)),
        ..granted(changed, &[], None)
    };
    let version = || d.cached_partition(DIR).map(|part| part.attr.version);
    let early = d.begin_request(&lookup(6));
    let asked = d.begin_request(&lookup(5));
    d.finish_request(&lookup(5), asked, Err(Errno::ENOENT), Some(&with(&[], 1)));
    assert_eq!((version(), d.answer(&lookup(5))), (Some(1), Some(Err(Errno::ENOENT))));
    assert_eq!(d.cached_attr(DIR), None, "it is not the directory");
    // The reply to this client's own change has the new state. A reply from before the change does
    // not count.
    let asked = d.begin_request(&create(5));
    assert_eq!(version(), None);
    let made =
        MetaReply::Created { attr: attr(Ino(15), InodeKind::File, 1), cap: None, created: true };
    d.finish_request(&create(5), asked, Ok(&made), Some(&with(&[DIR], 2)));
    assert_eq!(version(), Some(2));
    d.finish_request(&lookup(6), early, Err(Errno::ENOENT), Some(&with(&[], 1)));
    assert_eq!(version(), Some(2));
    // The kernel's copy of the directory goes with the partition.
    let whole = Ino(99);
    assert!(d.grant_partition_timeout(&part(1), whole).is_none(), "that is past");
    assert!(d.grant_partition_timeout(&part(2), whole).is_some());
    d.handle_recall(&[DIR], &[]);
    assert_eq!((version(), d.answer(&lookup(5))), (None, None));
    assert_eq!(*told.0.lock(), [whole]);
}

#[test]
fn an_answer_from_before_a_recall_is_not_kept() {
    let d = on();
    let asked = d.begin_request(&get(Ino(5)));
    d.handle_recall(&[Ino(5)], &[]);
    d.finish_request(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
    assert_eq!(d.answer(&get(Ino(5))), None);
    // Nor one of an earlier connection.
    let asked = d.begin_request(&get(Ino(5)));
    d.end_connection();
    d.begin_connection();
    d.extend_term(uptime(), TERM);
    d.finish_request(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
    assert_eq!(d.answer(&get(Ino(5))), None);
}

#[test]
fn a_term_ends() {
    let d = DelegationCache::default();
    d.begin_connection();
    let (begin, term) = (uptime(), Duration::from_millis(1));
    d.extend_term(begin, term);
    let asked = d.begin_request(&get(Ino(5)));
    d.finish_request(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
    while uptime() < begin + term {
        std::hint::spin_loop();
    }
    assert_eq!(d.answer(&get(Ino(5))), None);
}

#[test]
fn a_new_directory_is_known_as_a_whole() {
    let d = on();
    let mkdir = MetaOp::Create {
        parent: Ino(9),
        name: name(0),
        node: tatami_wire::meta::InodeTemplate::Dir,
        mode: 0o755,
        umask: 0,
        exclusive: true,
        open: None,
    };
    let asked = d.begin_request(&mkdir);
    let made = MetaReply::Created { attr: attr(DIR, InodeKind::Dir, 1), cap: None, created: true };
    let dir = Some(attr(Ino(9), InodeKind::Dir, 2));
    let with = granted(&[Ino(9), DIR], &[Ino(9), DIR], dir.clone());
    d.finish_request(&mkdir, asked, Ok(&made), Some(&with));
    assert_eq!(d.answer(&lookup(5)), Some(Err(Errno::ENOENT)));
    assert_eq!(d.answer(&get(Ino(9))), dir.map(|dir| Ok(MetaReply::Attr(dir))));
    // While a name is being made, only the shard knows.
    let asked = d.begin_request(&unlink(5));
    assert_eq!(d.answer(&lookup(5)), None);
    assert_eq!(d.answer(&lookup(6)), Some(Err(Errno::ENOENT)));
    d.finish_request(&unlink(5), asked, Err(Errno::ENOENT), Some(&granted(&[], &[DIR], None)));
    assert_eq!(d.answer(&lookup(5)), Some(Err(Errno::ENOENT)));
}

#[test]
fn who_knows_as_many_names_as_there_are_knows_all() {
    let d = on();
    let dir = |size, version| Some(Attr { size, ..attr(DIR, InodeKind::Dir, version) });
    let made = |n| {
        let attr = attr(Ino(n), InodeKind::Fifo, 1);
        MetaReply::Created { attr, cap: None, created: true }
    };
    let told = |size, version| granted(&[DIR], &[DIR], dir(size, version));
    // While another name is being made, the directory is not complete.
    let (first, other) = (d.begin_request(&create(1)), d.begin_request(&create(2)));
    d.finish_request(&create(1), first, Ok(&made(1)), Some(&told(1, 1)));
    assert_eq!((d.answer(&lookup(2)), d.answer(&lookup(3))), (None, None));
    d.finish_request(&create(2), other, Ok(&made(2)), Some(&told(2, 2)));
    let third = d.begin_request(&create(3));
    d.finish_request(&create(3), third, Ok(&made(3)), Some(&told(3, 3)));
    assert_eq!(d.answer(&lookup(4)), Some(Err(Errno::ENOENT)));
    let asked = d.begin_request(&create(4));
    assert_eq!(d.answer(&lookup(4)), None);
    d.finish_request(&create(4), asked, Err(Errno::ENOSPC), Some(&granted(&[], &[], None)));
    d.handle_recall(&[DIR], &[]);
    // Another client has made a name that this one does not know.
    let asked = d.begin_request(&create(5));
    d.finish_request(&create(5), asked, Ok(&made(5)), Some(&told(5, 5)));
    assert_eq!(d.answer(&lookup(6)), None);
}

#[test]
fn an_inode_elsewhere_is_known_by_another_executor() {
    let (here, there) = (on(), on());
    let of = |ino: Ino| [Some(if ino == DIR { &here } else { &there }), None];
    let of_any = |ino| of(ino).into_iter().flatten().find_map(|known| known.cached_attr(ino));
    let find = MetaOp::LookupEntry { parent: DIR, name: name(5) };
    let asked = here.begin_request(&find);
    let leads = MetaReply::Referral(Ino(5));
    here.finish_request(&find, asked, Ok(&leads), Some(&granted(&[], &[DIR], None)));
    assert_eq!(answer_from_cache(&find, of, of_any), Some(Ok(leads)));
    assert_eq!(answer_from_cache(&lookup(5), of, of_any), None);
    let asked = there.begin_request(&get(Ino(5)));
    let with = granted(&[], &[Ino(5)], None);
    there.finish_request(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&with));
    assert_eq!(answer_from_cache(&find, of, of_any), Some(Ok(found(Ino(5)))));
}

#[test]
fn a_change_of_unknown_effect_ends_all_knowledge() {
    let d = on();
    let asked = d.begin_request(&get(Ino(5)));
    d.finish_request(&get(Ino(5)), asked, Ok(&found(Ino(5))), Some(&granted(&[], &[Ino(5)], None)));
    let asked = d.begin_request(&unlink(3));
    d.finish_request(&unlink(3), asked, Err(Errno::EHOSTDOWN), None);
    assert_eq!(d.answer(&get(Ino(5))), None);
}

/// Runs threads of one client and another client, in any order, against a shard that applies
/// requests one by one. The shard delegates the directory with some replies only, and recalls only
/// what it has delegated. A reply without the shard must equal the shard's reply, except for names
/// that a thread is just changing.
#[test]
fn no_interleaving_leaves_something_old() {
    use proptest::prelude::*;
    #[derive(Clone, Debug)]
    enum Step {
        /// Thread `.0` asks: 0 to look up, 1 to make, 2 to remove name `.2`, 3 to list all.
        Ask(usize, u8, u64),
        /// The shard applies the request of thread `.0`, and delegates the directory if `.1`.
        Apply(usize, bool),
        /// Its reply comes in.
        Learn(usize),
        /// Another client makes or removes a name, and the recall comes in.
        Other(u64),
        /// Another client gives the file with the name `.0` the other name, if that is free.
        Rename(u64),
    }
    struct Call {
        op: MetaOp,
        asked: CacheTicket,
        answer: Option<(MetaResult, DelegationGrant)>,
    }
    /// Recalls the entries of the directory, and the file that lost a name.
    fn recall(d: &DelegationCache, held: &mut std::collections::HashSet<Ino>, file: Option<Ino>) {
        let file: Vec<Ino> = file.into_iter().filter(|ino| held.remove(ino)).collect();
        d.handle_recall(&file, if held.remove(&DIR) { &[DIR] } else { &[] });
    }
    let step = prop_oneof![
        3 => (0..3usize, 0..4u8, 0..2u64).prop_map(|(t, k, n)| Step::Ask(t, k, n)),
        3 => (0..3usize, any::<bool>()).prop_map(|(t, whole)| Step::Apply(t, whole)),
        3 => (0..3usize).prop_map(Step::Learn),
        1 => (0..2u64).prop_map(Step::Other),
        1 => (0..2u64).prop_map(Step::Rename),
    ];
    proptest!(ProptestConfig::with_cases(2000), |(
        steps in proptest::collection::vec(step, 1..40)
    )| {
        let d = on();
        let mut entries: HashMap<u64, Ino> = HashMap::new();
        let (mut next, mut version) = (100u64, 1u64);
        // What the shard has delegated to the client.
        let mut held: std::collections::HashSet<Ino> = std::collections::HashSet::new();
        let mut threads: Vec<Option<Call>> = vec![None, None, None];
        for step in steps {
            match step {
                Step::Ask(t, kind, n) if threads[t].is_none() => {
                    let op = match kind {
                        0 => lookup(n),
                        1 => create(n),
                        2 => unlink(n),
                        _ => list(),
                    };
                    let asked = d.begin_request(&op);
                    threads[t] = Some(Call { op, asked, answer: None });
                }
                Step::Apply(t, whole) => {
                    let Some(call) = threads[t].as_mut().filter(|c| c.answer.is_none()) else {
                        continue;
                    };
                    let n: u64 = call.op.named_entry().map_or(0, |(_, name)| {
                        std::str::from_utf8(name).expect("digits").parse().expect("digits")
                    });
                    let there = entries.get(&n).copied();
                    let mut changed = Vec::new();
                    let result = match (&call.op, there) {
                        (MetaOp::ReadDir { .. }, _) => Ok(listing(&entries)),
                        (MetaOp::Lookup { .. }, Some(ino)) => Ok(found(ino)),
                        (MetaOp::Create { .. }, None) => {
                            next += 1;
                            entries.insert(n, Ino(next));
                            changed = vec![DIR, Ino(next)];
                            let attr = attr(Ino(next), InodeKind::File, 1);
                            Ok(MetaReply::Created { attr, cap: None, created: true })
                        }
                        (MetaOp::Create { .. }, Some(_)) => Err(Errno::EEXIST),
                        (MetaOp::Unlink { .. }, Some(ino)) => {
                            entries.remove(&n);
                            changed = vec![DIR, ino];
                            Ok(MetaReply::Removed { ino: Some(ino), last: true })
                        }
                        (_, _) => Err(Errno::ENOENT),
                    };
                    version += changed.len() as u64;
                    let size = entries.len() as u64;
                    let dir = Some(Attr { size, ..attr(DIR, InodeKind::Dir, version) });
                    let dir = dir.filter(|_| whole && !changed.is_empty());
                    let mut to = Vec::from_iter(whole.then_some(DIR));
                    to.extend(match &result {
                        Ok(MetaReply::Attr(a) | MetaReply::Created { attr: a, .. }) => Some(a.ino),
                        _ => None,
                    });
                    let mut granted = granted(&changed, &to, dir);
                    if let Ok(MetaReply::Entries { entries, .. }) = &result {
                        granted.delegated_entries = entries.iter().map(|_| true).collect();
                        held.extend(entries.iter().map(|entry| entry.ino));
                    }
                    held.extend(to);
                    call.answer = Some((result, granted));
                }
                Step::Learn(t) => {
                    if threads[t].as_ref().is_none_or(|call| call.answer.is_none()) {
                        continue;
                    }
                    let Some(Call { op, asked, answer: Some((result, granted)) }) =
                        threads[t].take() else { continue };
                    d.finish_request(&op, asked, result.as_ref().map_err(|e| *e), Some(&granted));
                }
                Step::Other(n) => {
                    let removed = entries.remove(&n);
                    if removed.is_none() {
                        next += 1;
                        entries.insert(n, Ino(next));
                    }
                    recall(&d, &mut held, removed);
                    version += 1;
                }
                Step::Rename(n) => {
                    if !entries.contains_key(&(1 - n)) && let Some(ino) = entries.remove(&n) {
                        entries.insert(1 - n, ino);
                        recall(&d, &mut held, Some(ino));
                        version += 1;
                    }
                }
                Step::Ask(..) => {}
            }
            // A name that no thread is changing must be answered as the shard would.
            for n in 0..2 {
                let busy = |c: &Call| c.op.is_mutation() && c.op.named_entry() == lookup(n).named_entry();
                if threads.iter().flatten().any(busy) {
                    continue;
                }
                match d.answer(&lookup(n)) {
                    Some(Ok(MetaReply::Attr(a))) => {
                        prop_assert_eq!(Some(a.ino), entries.get(&n).copied());
                    }
                    Some(Err(_)) => prop_assert!(!entries.contains_key(&n)),
                    _ => {}
                }
            }
            if !threads.iter().flatten().any(|c| c.op.is_mutation())
                && let Some(Ok(MetaReply::Attr(a))) = d.answer(&get(DIR))
            {
                prop_assert_eq!(a.version, version);
            }
        }
    });
}

#[test]
fn what_is_remembered_is_bounded() {
    for dirs in [&[DIR][..], &[]] {
        let d = on();
        for n in 0..(KNOWN_MAX as u64 * 2) {
            let op = lookup(n);
            let asked = d.begin_request(&op);
            let ino = Ino(1000 + n);
            let with = granted(&[], &[dirs, &[ino]].concat(), None);
            d.finish_request(&op, asked, Ok(&found(ino)), Some(&with));
        }
        let count = |shard: &Mutex<CacheShard>| {
            let shard = shard.lock();
            let known: usize = shard.inodes.values().map(CachedInode::count_records).sum();
            known + shard.loose_names.values().map(HashMap::len).sum::<usize>()
        };
        let held: usize = d.shards.iter().map(count).sum();
        assert_eq!(held, d.size.load(SeqCst));
        assert!(held <= KNOWN_MAX + CACHE_SHARDS);
        d.invalidate_all();
        assert_eq!(d.size.load(SeqCst), 0);
    }
}

#[test]
fn a_name_in_a_busy_directory_is_known_with_its_inode() {
    let d = on();
    let made =
        MetaReply::Created { attr: attr(Ino(15), InodeKind::Fifo, 1), cap: None, created: true };
    let learn = |op: &MetaOp, reply: &MetaReply, delegated: &[Ino]| {
        let asked = d.begin_request(op);
        let changed = if op.is_mutation() { &[DIR, Ino(15)][..] } else { &[] };
        d.finish_request(op, asked, Ok(reply), Some(&granted(changed, delegated, None)));
    };
    learn(&create(5), &made, &[Ino(15)]);
    let known = || d.answer(&lookup(5)).is_some();
    assert!(known());
    d.handle_recall(&[], &[DIR]);
    assert!(known(), "others change other entries");
    // Another client renames the file. It is delegated again, under a name that is not known.
    d.handle_recall(&[Ino(15)], &[]);
    assert!(!known());
    learn(&get(Ino(15)), &found(Ino(15)), &[Ino(15)]);
    assert!(!known());
    learn(&lookup(5), &found(Ino(15)), &[]);
    assert!(!known(), "a recall would not come");
    learn(&lookup(5), &found(Ino(15)), &[Ino(15)]);
    assert!(known());
    let asked = d.begin_request(&unlink(5));
    assert!(!known(), "this client removes it");
    d.finish_request(&unlink(5), asked, Err(Errno::EPERM), Some(&granted(&[], &[], None)));
    assert!(!known());
    learn(&lookup(5), &found(Ino(15)), &[Ino(15)]);
    let clear = MetaOp::ClearDir { dir: DIR, after: 0, limit: 1, with_names: false };
    let asked = d.begin_request(&clear);
    assert!(!known());
    d.finish_request(&clear, asked, Err(Errno::EPERM), Some(&granted(&[], &[], None)));
}

#[test]
fn the_path_through_a_directory_outlives_its_entries() {
    let d = on();
    let (whole, path) = (granted(&[], &[DIR], None), granted(&[], &[], None));
    let path = DelegationGrant { has_path: true, ..path };
    let dir = |version| attr(DIR, InodeKind::Dir, version);
    let learn = |reply: &MetaReply, with: &DelegationGrant| {
        let asked = d.begin_request(&get(DIR));
        d.finish_request(&get(DIR), asked, Ok(reply), Some(with));
    };
    let known = || {
        let shard = d.shard_of_inode(DIR).lock();
        shard.inodes.get(&DIR).and_then(|known| known.path.as_ref()).map(|dir| dir.version)
    };
    let busy = || d.cached_busy_path(DIR).map(|dir| dir.version);
    learn(&MetaReply::Attr(dir(1)), &whole);
    d.handle_recall(&[], &[DIR]);
    assert_eq!((d.cached_attr(DIR), known(), busy()), (None, Some(1), None));
    // Changes of entries by this client leave it, too.
    let asked = d.begin_request(&create(5));
    assert_eq!(known(), Some(1));
    let made =
        MetaReply::Created { attr: attr(Ino(15), InodeKind::Fifo, 1), cap: None, created: true };
    let changed = granted(&[DIR, Ino(15)], &[], None);
    d.finish_request(&create(5), asked, Ok(&made), Some(&changed));
    assert_eq!(known(), Some(1));
    d.handle_recall(&[DIR], &[]);
    assert_eq!(known(), None);
    // Of a split directory, the first partition has it.
    learn(&MetaReply::FirstPartition(dir(3)), &granted(&[], &[], None));
    assert_eq!(known(), None);
    learn(&MetaReply::FirstPartition(dir(3)), &path);
    assert_eq!((known(), busy()), (Some(3), Some(3)));
    learn(&MetaReply::Attr(dir(3)), &whole);
    assert_eq!((known(), busy()), (Some(3), None));
    // A change of the directory itself by this client ends it. An older reply does not count.
    let (early, set) = (d.begin_request(&get(DIR)), tatami_wire::SetAttr::default());
    let chmod = MetaOp::SetAttr { ino: DIR, set };
    let asked = d.begin_request(&chmod);
    assert_eq!(known(), None);
    d.finish_request(
        &chmod,
        asked,
        Ok(&MetaReply::Attr(dir(4))),
        Some(&granted(&[DIR], &[], None)),
    );
    d.finish_request(&get(DIR), early, Ok(&MetaReply::Attr(dir(3))), Some(&path));
    assert_eq!(known(), None);
    let asked = d.begin_request(&chmod);
    let with = DelegationGrant { has_path: true, ..granted(&[DIR], &[], None) };
    d.finish_request(&chmod, asked, Ok(&MetaReply::Attr(dir(5))), Some(&with));
    assert_eq!(known(), Some(5));
    // The kernel may use it with old counts, for a moment.
    let (told, second) = (Arc::new(Told::default()), Duration::from_secs(1));
    let kernel: Arc<dyn KernelCache> = told.clone();
    d.set_kernel(&kernel);
    let counted = Attr { size: 99, ..dir(7) };
    let lent = |attr: &Attr| d.grant_path_timeout(attr, uptime() + second);
    assert!(lent(&counted).is_some_and(|time| time <= second));
    assert_eq!(d.grant_path_timeout(&counted, Duration::ZERO), None, "the counts are too old");
    assert_eq!(lent(&Attr { mode: 0o700, ..dir(7) }), None);
    let early = d.begin_request(&get(DIR));
    d.handle_recall(&[DIR], &[]);
    assert_eq!(*told.0.lock(), [DIR]);
    d.finish_request(&get(DIR), early, Ok(&MetaReply::Attr(dir(5))), Some(&path));
    assert_eq!((known(), lent(&counted)), (None, None));
}

#[test]
fn a_directory_is_listed_when_that_saves_requests() {
    let d = on();
    let dir = |size| Some(Attr { size, ..attr(DIR, InodeKind::Dir, 1) });
    let miss = |n, size| {
        let asked = d.begin_request(&lookup(n));
        let with = granted(&[], &[DIR], dir(size));
        d.finish_request(&lookup(n), asked, Err(Errno::ENOENT), Some(&with));
        d.should_list(DIR)
    };
    let wanted = u64::from(LISTED_AFTER + 640 / LISTED_PER_LOOKUP);
    assert!((1..wanted).all(|n| !miss(n, 640)));
    assert!(miss(wanted, 640));
    assert!(!miss(wanted + 1, 640), "once");
    assert!((0..10_000).all(|n| !miss(n, LISTED_MAX + 1)), "too large");
    // All names have come, of a partition as well.
    d.handle_recall(&[], &[DIR]);
    let names: HashMap<u64, Ino> = (0..100).map(|n| (n, Ino(1000 + n))).collect();
    let mut part = part(1);
    part.attr.size = 100;
    let with = DelegationGrant { partition: Some(part), ..granted(&[], &[], None) };
    let asked = d.begin_request(&list());
    d.finish_request(&list(), asked, Ok(&listing(&names)), Some(&with));
    d.detect_complete_directory(DIR, COUNTED_MAX);
    assert_eq!(d.answer(&lookup(100)), None);
    d.detect_complete_directory(DIR, usize::MAX);
    assert_eq!(d.answer(&lookup(100)), Some(Err(Errno::ENOENT)));
    assert!((0..10_000).all(|n| !miss(n, 640)), "it is complete");
}

/// Records the inodes that it must forget.
#[derive(Default)]
struct Told(Mutex<Vec<Ino>>);

impl KernelCache for Told {
    fn invalidate_attr(&self, ino: Ino, ago: Duration) {
        assert!(ago < uptime());
        self.0.lock().push(ino);
    }
    fn can_expire_names(&self) -> bool {
        true
    }
    fn expire_names(&self, names: Vec<KernelName>, done: NamesExpired) {
        done(vec![true; names.len()]);
    }
}

#[test]
fn what_is_lent_is_forgotten_before_it_is_given_back() {
    let d = on();
    let told = Arc::new(Told::default());
    let file = attr(Ino(5), InodeKind::File, 1);
    let learn = |d: &DelegationCache| {
        let asked = d.begin_request(&lookup(5));
        let with = granted(&[], &[DIR, Ino(5)], None);
        d.finish_request(&lookup(5), asked, Ok(&found(Ino(5))), Some(&with));
    };
    learn(&d);
    assert_eq!(d.grant_attr_timeout(&file), None, "there is no kernel");
    let kernel: Arc<dyn KernelCache> = told.clone();
    d.set_kernel(&kernel);
    assert!(d.grant_attr_timeout(&file).is_some_and(|time| time <= TERM));
    assert_eq!(
        d.grant_attr_timeout(&attr(Ino(5), InodeKind::File, 2)),
        None,
        "others than are known"
    );
    assert_eq!(d.grant_attr_timeout(&attr(Ino(6), InodeKind::File, 1)), None);
    d.handle_recall(&[Ino(5)], &[]);
    d.handle_recall(&[Ino(5)], &[]);
    assert_eq!(*told.0.lock(), [Ino(5)]);
    assert_eq!(d.grant_attr_timeout(&file), None);
    // A change by this client.
    learn(&d);
    assert!(d.grant_attr_timeout(&file).is_some());
    let link = MetaOp::Link { ino: Ino(5), parent: DIR, name: name(6) };
    let asked = d.begin_request(&link);
    let linked = MetaReply::Attr(attr(Ino(5), InodeKind::File, 2));
    d.finish_request(
        &link,
        asked,
        Ok(&linked),
        Some(&granted(&[DIR, Ino(5)], &[DIR, Ino(5)], None)),
    );
    assert_eq!(*told.0.lock(), [Ino(5), Ino(5)]);
    assert_eq!(d.grant_attr_timeout(&file), None);
    assert!(d.grant_attr_timeout(&attr(Ino(5), InodeKind::File, 2)).is_some());
    d.end_connection();
    assert_eq!(*told.0.lock(), [Ino(5), Ino(5), Ino(5)]);
}

#[test]
fn the_name_of_a_delegated_directory_is_lent_until_it_is_recalled() {
    let d = on();
    let sub = Ino(5);
    let as_known = || KernelName { dir: DIR, name: b"sub".as_slice().into() };
    let lend = |d: &DelegationCache| {
        let until = uptime() + Duration::from_secs(1);
        let mut lent = None;
        while lent.is_none() && uptime() < until {
            lent = d.grant_name_timeout(sub, as_known());
        }
        lent
    };
    let learn = |d: &DelegationCache| {
        let asked = d.begin_request(&get(sub));
        let found = MetaReply::Attr(attr(sub, InodeKind::Dir, 1));
        d.finish_request(&get(sub), asked, Ok(&found), Some(&granted(&[], &[sub], None)));
    };
    learn(&d);
    assert_eq!(lend(&d), None, "there is no kernel");
    let kernel: Arc<dyn KernelCache> = Arc::new(Told::default());
    d.set_kernel(&kernel);
    assert!(lend(&d).is_some_and(|time| time < TERM));
    assert_eq!(d.grant_name_timeout(Ino(6), as_known()), None, "it is not delegated");
    let names = |lent: Vec<LentName>| lent.into_iter().map(|lent| lent.name).collect::<Vec<_>>();
    assert_eq!(
        names(d.handle_recall(&[DIR], &[])),
        [],
        "the name does not depend on its directory"
    );
    assert_eq!(names(d.handle_recall(&[], &[sub])), [], "nor on the entries below");
    assert!(d.grant_name_timeout(sub, as_known()).is_some());
    assert_eq!(names(d.handle_recall(&[sub], &[])), [as_known()]);
    assert_eq!(names(d.handle_recall(&[sub], &[])), []);
    assert_eq!(lend(&d), None);
    let d = on();
    d.set_kernel(&kernel);
    learn(&d);
    assert!(lend(&d).is_some());
    assert_eq!(names(d.end_connection()), [as_known()]);
}
