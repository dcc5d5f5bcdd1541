//! What says from time to time that this process lives: one thread for all
//! that it has to say, as long as there is anything.

use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two beats.
pub const EVERY: Duration = Duration::from_secs(5);
/// Who has not said anything for this long is dead, or as good as that. Many
/// beats, for clocks that differ and servers that are slow.
pub const LEASE: Duration = Duration::from_secs(30);

/// Something that is to be said from time to time.
pub trait Beat: Send + Sync {
    /// Says it. Errors are met by those who do not hear it.
    fn beat(&self);
}

#[derive(Default)]
struct Heart {
    beats: Vec<Weak<dyn Beat>>,
    runs: bool,
}

static HEART: Mutex<Heart> = Mutex::new(Heart { beats: Vec::new(), runs: false });

/// Says `what` at every beat from now on, until it is dropped.
pub fn keep(what: &Arc<impl Beat + 'static>) {
    let what: Arc<dyn Beat> = what.clone();
    let mut heart = HEART.lock();
    heart.beats.push(Arc::downgrade(&what));
    if !heart.runs {
        let thread = std::thread::Builder::new().name("tatami-beats".to_owned());
        heart.runs = thread.spawn(run).is_ok();
    }
}

fn run() {
    loop {
        #[allow(clippy::disallowed_methods)] // time itself is what is waited for
        std::thread::sleep(EVERY);
        let mut heart = HEART.lock();
        heart.beats.retain(|beat| beat.strong_count() > 0);
        heart.runs = !heart.beats.is_empty();
        if !heart.runs {
            return;
        }
        let living: Vec<_> = heart.beats.iter().filter_map(Weak::upgrade).collect();
        drop(heart);
        for beat in living {
            beat.beat();
        }
    }
}
