//! The token file of `tatami up` on several hosts, in the directory of the volume. By its text the
//! far side recognizes that directory. It also has the record of the files that the command makes,
//! so that they can be removed if the command is killed.

use crate::error::{CommandResult, FailureContext};
use crate::made_files::MadeFiles;
use crate::replace_file::replace_file;
use crate::term;
use crate::volume_dir::VolumeDir;
use rustix::fs::FlockOperation;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The name of the file.
pub const TOKEN_FILE: &str = ".up-token";

/// A text by which a host recognizes the directory of this process. It is removed at the end.
pub struct TokenMark {
    path: PathBuf,
    /// The text.
    pub text: String,
}

impl TokenMark {
    /// Writes the text to a file of the volume's directory, with the record of the files that this
    /// process makes there. If this process dies, the far side on this machine removes those, too.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(place: &VolumeDir, made: Option<&MadeFiles>) -> CommandResult<TokenMark> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).context(|| "no random numbers".to_owned())?;
        let text: String = random.iter().map(|b| format!("{b:02x}")).collect();
        let path = place.dir.join(TOKEN_FILE);
        let made = serde_json::to_string(&made).context(|| path.display().to_string())?;
        replace_file(&path, &format!("{text}\n{made}\n"))?;
        Ok(TokenMark { path, text })
    }
}

impl Drop for TokenMark {
    fn drop(&mut self) {
        // Without the file, no host takes its directory for that of this process.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Parses a token file: the text, and the record of files.
pub fn parse_token(content: &str) -> (&str, Option<MadeFiles>) {
    let (text, made) = content.split_once('\n').unwrap_or((content, ""));
    (text, serde_json::from_str(made).ok().flatten())
}

/// Takes the record of files out of the token file: the hosts keep the volume from now on, so this
/// machine must keep its files even if this process dies.
///
/// # Errors
/// Those of the file system.
pub fn forget_made_files(place: &VolumeDir) -> CommandResult {
    let path = place.dir.join(TOKEN_FILE);
    let content =
        std::fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
    replace_file(&path, &format!("{}\nnull\n", parse_token(&content).0))
}

/// Removes the files of a `tatami up` that was killed while it made the volume on hosts. The hosts
/// undo their parts by themselves. Returns whether there was something to remove.
///
/// # Errors
/// Those of the file system.
pub fn remove_unfinished(place: &VolumeDir) -> CommandResult<bool> {
    let path = place.dir.join(TOKEN_FILE);
    let failed = || format!("cannot read {}", path.display());
    if !path.exists() {
        return Ok(false);
    }
    // A command that still works holds it, and removes the file at its end.
    let _lock = place.lock()?;
    let Ok(mut file) = File::open(&path) else { return Ok(false) };
    let mut content = String::new();
    file.read_to_string(&mut content).context(failed)?;
    let Some(made) = parse_token(&content).1.filter(|made| made.is_of(&place.dir)) else {
        return Ok(false);
    };
    // The far side on this machine stops daemons, for which it needs the files. It holds a lock.
    rustix::fs::flock(&file, FlockOperation::LockExclusive).context(failed)?;
    made.remove_all();
    let shown = place.dir.display();
    term::print_note(&format!("removed the files of a tatami up that was killed: {shown}"));
    Ok(true)
}

/// Lets a later command wait with the removal of files until this side has undone its part.
///
/// # Errors
/// Those of the file system.
pub fn lock_token(dir: &Path) -> CommandResult<File> {
    let failed = || format!("cannot lock {}", dir.join(TOKEN_FILE).display());
    let file = File::open(dir.join(TOKEN_FILE)).context(failed)?;
    rustix::fs::flock(&file, FlockOperation::LockShared).context(failed)?;
    Ok(file)
}
