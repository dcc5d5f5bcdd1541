//! Random operations, done on the mount and on a model in memory: both must give the same answers.
//! Failed histories are kept in `model-regressions.txt` and tried first.

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use std::cell::Cell;
use std::fs;
use tatami_tests::model::{Model, Op};
use tatami_tests::seed::{Rng, scaled};
use tatami_tests::subject::{Subject, compare, step};
use tatami_tests::{Cluster, Setup};

/// Histories tried in one run.
const CASES: u64 = 100;
/// Longest history.
const STEPS: usize = 120;

/// A history shrinks by leaving out operations.
fn histories(handles: bool) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<u64>().no_shrink(), 1..STEPS).prop_map(move |seeds| {
        seeds.into_iter().map(|seed| Op::random(&mut Rng::with_seed(seed), handles)).collect()
    })
}

/// A history of operations on either of two mounts.
fn divided_histories() -> impl Strategy<Value = Vec<(u16, Op)>> {
    prop::collection::vec(any::<u64>().no_shrink(), 1..STEPS).prop_map(|seeds| {
        let one = |seed| {
            let mut rng = Rng::with_seed(seed);
            (rng.u16(..2), Op::random(&mut rng, false))
        };
        seeds.into_iter().map(one).collect()
    })
}

fn runner() -> TestRunner {
    TestRunner::new(Config {
        cases: u32::try_from(scaled(CASES)).unwrap_or(u32::MAX),
        max_shrink_iters: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/e2e/model-regressions.txt"
        )))),
        ..Config::default()
    })
}

/// A fresh folder for each history, seen through every mount.
fn folders(cluster: &Cluster, case: &Cell<u32>) -> Vec<std::path::PathBuf> {
    let name = format!("case-{}", case.replace(case.get() + 1));
    fs::create_dir(cluster.mount(0).join(&name)).expect("a folder for the case");
    (0..cluster.nodes()).map(|node| cluster.mount(node).join(&name)).collect()
}

fn single(cluster: Cluster) {
    let case = Cell::new(0);
    let verdict = runner().run(&histories(true), |history| {
        let folder = folders(&cluster, &case).remove(0);
        let (mut model, mut subject) = (Model::default(), Subject::new(&folder));
        for op in &history {
            step(&mut model, &mut subject, op).map_err(TestCaseError::fail)?;
        }
        compare(&model, &folder).map_err(TestCaseError::fail)
    });
    if let Err(error) = verdict {
        panic!("{error}");
    }
    cluster.finish();
}

/// One mount, with files held open, written, cut and read through handles.
#[test]
fn one_mount_answers_as_the_model() {
    single(Cluster::start(1));
}

/// The same without passthrough: the mount process moves every byte.
#[test]
fn one_mount_without_passthrough_answers_as_the_model() {
    single(Setup::nodes(1).without_passthrough().start());
}

/// Two mounts take turns at random; each sees the files that the other has closed.
#[test]
fn two_mounts_answer_as_one_model() {
    let cluster = Cluster::start(2);
    let case = Cell::new(0);
    let verdict = runner().run(&divided_histories(), |history| {
        let folders = folders(&cluster, &case);
        let mut model = Model::default();
        let mut subjects: Vec<Subject> = folders.iter().map(Subject::new).collect();
        for (mount, op) in &history {
            let subject = &mut subjects[usize::from(*mount)];
            step(&mut model, subject, op).map_err(TestCaseError::fail)?;
        }
        folders.iter().try_for_each(|f| compare(&model, f)).map_err(TestCaseError::fail)
    });
    if let Err(error) = verdict {
        panic!("{error}");
    }
    cluster.finish();
}

/// The model itself is right: it answers as the disk below does.
#[test]
fn the_local_disk_answers_as_the_model() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on disk");
    let case = Cell::new(0);
    let verdict = runner().run(&histories(true), |history| {
        let folder = place.path().join(format!("case-{}", case.replace(case.get() + 1)));
        fs::create_dir(&folder).expect("a folder for the case");
        let (mut model, mut subject) = (Model::default(), Subject::new(&folder));
        for op in &history {
            step(&mut model, &mut subject, op).map_err(TestCaseError::fail)?;
        }
        compare(&model, &folder).map_err(TestCaseError::fail)
    });
    if let Err(error) = verdict {
        panic!("{error}");
    }
}
