//! Markdown documents: links point to existing files and headings, and the index and the table of limits are complete.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[test]
fn relative_links_point_to_existing_files_and_headings() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for target in links(&text).filter(|target| !target.contains("://")) {
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { document.clone() } else { document.with_file_name(path) };
            let is_found = match heading {
                "" => file.exists(),
                heading => fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(heading)),
            };
            if !is_found {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_document_is_in_the_index() {
    let directory = root().join("docs");
    let index = fs::read_to_string(directory.join("README.md")).unwrap();
    let linked: BTreeSet<&str> = links(&index).collect();
    for document in documents().filter(|document| document.parent() == Some(&directory)) {
        let name = document.file_name().unwrap().to_str().unwrap();
        assert!(name == "README.md" || linked.contains(name), "docs/README.md lacks a link to {name}");
    }
}

#[test]
fn every_limit_is_documented_with_its_default() {
    let read = |name| fs::read_to_string(root().join("docs").join(name)).unwrap();
    let (configuration, limits) = (read("configuration.md"), read("limits.md"));
    let keys: Vec<&str> = configuration.split("\n## `").filter(|key| key.starts_with("limits.")).collect();
    assert!(keys.len() > 10);
    for key in keys {
        let (name, text) = key.split_once('`').unwrap();
        let default = text.split_once("; default: ").unwrap().1.split([';', '\n']).next().unwrap();
        let default = if default == "not set" { "" } else { default.trim_matches(['`', '"']) };
        let row = limits.lines().find(|line| line.starts_with('|') && line.ends_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/limits.md lacks {name}")).replace(' ', "");
        assert!(row.contains(default), "docs/limits.md: the default of {name} is {default}");
    }
}

#[test]
fn links_and_anchors_are_found() {
    let text =
        "# A `b.c`, and D-e\n[x](y.md#z) and [v\nw](#u)\n## Same\n## Same\n```sh\n# no heading [a](b)\n```\n`[c](d)`\n";
    assert_eq!(links(text).collect::<Vec<_>>(), ["y.md#z", "#u"]);
    assert_eq!(anchors(text), ["a-bc-and-d-e", "same", "same-1"].map(str::to_owned).into());
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Paths of the documents that are checked.
fn documents() -> impl Iterator<Item = PathBuf> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benches/README.md"]
        .map(|name| root().join(name))
        .into_iter()
        .chain(docs)
}

/// Lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Targets of the links `[text](target)`, except for those in code.
fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|line| {
        line.match_indices("](").filter_map(|(at, _)| {
            let is_code = line[..at].matches('`').count() % 2 == 1;
            line[at + 2..].split_once(')').filter(|_| !is_code).map(|(target, _)| target)
        })
    })
}

/// Anchors of the headings, as GitHub derives them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let heading = heading.trim().to_lowercase().replace(' ', "-");
        let anchor: String = heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        let copies = (1..).map(|n| format!("{anchor}-{n}"));
        let unique = std::iter::once(anchor.clone()).chain(copies).find(|anchor| !anchors.contains(anchor));
        anchors.extend(unique);
    }
    anchors
}
