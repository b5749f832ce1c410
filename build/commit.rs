//! Commit of the source code, for `a2a --version`. Read from files, without a call of `git`.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the commit of the source code in a directory, and the files and directories that change with it. `None` if it is
/// unknown.
pub(crate) fn commit(root: &Path) -> (Option<String>, Vec<PathBuf>) {
    // Written by `cargo package`.
    let vcs_info = root.join(".cargo_vcs_info.json");
    if let Ok(text) = fs::read_to_string(&vcs_info) {
        let id = text.split_once("\"sha1\"").and_then(|(_, rest)| rest.split('"').nth(1).and_then(id));
        return (id, vec![vcs_info]);
    }
    let mut inputs = Vec::new();
    let id = git_commit(&root.join(".git"), &mut inputs);
    // Cargo would run the build script each time because of a missing file.
    inputs.retain(|path| path.exists());
    (id, inputs)
}

fn git_commit(git: &Path, inputs: &mut Vec<PathBuf>) -> Option<String> {
    // A work tree has a file instead of the directory.
    let directory = match fs::read_to_string(git) {
        Ok(text) => {
            inputs.push(git.to_owned());
            git.parent()?.join(text.strip_prefix("gitdir:")?.trim())
        }
        Err(_) => git.to_owned(),
    };
    let common = fs::read_to_string(directory.join("commondir"));
    let common = common.map_or_else(|_| directory.clone(), |path| directory.join(path.trim()));
    let head = directory.join("HEAD");
    let text = fs::read_to_string(&head).ok()?;
    inputs.push(head);
    let Some(name) = text.strip_prefix("ref:") else { return id(&text) };
    let name = name.trim();
    let (loose, packed) = (common.join(name), common.join("packed-refs"));
    let commit = fs::read_to_string(&loose).ok();
    inputs.push(packed.clone());
    if let Some(text) = commit {
        inputs.push(loose);
        return id(&text);
    }
    // The next commit creates the file.
    inputs.extend(loose.parent().map(Path::to_owned));
    let packed = fs::read_to_string(packed).ok()?;
    let found = packed.lines().find_map(|line| line.split_once(' ').filter(|(_, packed)| *packed == name));
    found.and_then(|(commit, _)| id(commit))
}

/// Returns a valid commit id, shortened.
fn id(text: &str) -> Option<String> {
    const SHORT: usize = 12;
    let text = text.trim();
    let is_id = text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.get(..SHORT).filter(|_| is_id).map(str::to_owned)
}
