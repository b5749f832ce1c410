//! Layers of the crate: no module imports from a higher layer, and no modules import each other in a circle.
//!
//! The table below is where the layers are defined; `ARCHITECTURE.md` repeats it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Layers from the lowest to the highest, with their top-level modules.
const LAYERS: [(&str, &[&str]); 8] = [
    ("foundation", &["base", "check", "clock", "env", "json", "metric", "proto", "protocol", "report"]),
    ("contract", &["call", "contract", "error", "event", "history", "message", "pb", "response_budget", "snapshot"]),
    ("state", &["store", "task"]),
    ("engine", &["agent", "execution", "journal"]),
    ("service", &["extension", "push", "service"]),
    ("edges", &["adapter", "auth", "card", "client", "openapi", "transport", "v03"]),
    ("assembly", &["config", "server", "telemetry", "testing"]),
    ("program", &["cli", "main"]),
];

/// Modules that each module imports from, with a file that does.
type Imports = BTreeMap<String, BTreeMap<String, PathBuf>>;

#[test]
fn modules_import_only_from_their_own_layer_or_a_lower_one() {
    let imports = imports();
    let layer = |module: &str| LAYERS.iter().position(|(_, modules)| modules.contains(&module));
    let modules: BTreeSet<&str> = LAYERS.iter().flat_map(|(_, modules)| modules.iter().copied()).collect();
    let found: BTreeSet<&str> = imports.keys().map(String::as_str).filter(|module| *module != "lib").collect();
    assert_eq!(found, modules, "each top-level module is in one layer");
    let mut upward = Vec::new();
    for (module, imported) in &imports {
        for (target, file) in imported {
            if layer(module) < layer(target) && module != "lib" {
                upward.push(format!("{}: {module} imports {target} of a higher layer", file.display()));
            }
        }
    }
    assert!(upward.is_empty(), "{}", upward.join("\n"));
}

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let mut imports = imports();
    // What imports nothing that is left can't be in a circle.
    loop {
        let free: Vec<String> =
            imports.iter().filter(|(_, imported)| imported.is_empty()).map(|(module, _)| module.clone()).collect();
        if free.is_empty() {
            break;
        }
        for module in free {
            imports.remove(&module);
            for imported in imports.values_mut() {
                imported.remove(&module);
            }
        }
    }
    // The remaining modules are in a circle, or import from one.
    assert!(imports.is_empty(), "{imports:#?}");
}

#[test]
fn architecture_lists_the_layers() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (name, modules) in LAYERS {
        let modules: Vec<String> = modules.iter().map(|module| format!("`{module}`")).collect();
        let row = format!("| {name} | {} |", modules.join(", "));
        assert!(text.contains(&row), "ARCHITECTURE.md lacks the row `{row}`");
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Reads the imports between the top-level modules of the crate.
fn imports() -> Imports {
    let source = root().join("src");
    let mut imports = Imports::new();
    for file in files(&source) {
        let relative = file.strip_prefix(&source).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = module.strip_suffix(".rs").unwrap_or(module).to_owned();
        let imported = imports.entry(module.clone()).or_default();
        for target in targets(&fs::read_to_string(&file).unwrap()) {
            if target != module {
                imported.entry(target).or_insert_with(|| relative.to_owned());
            }
        }
    }
    imports
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            all.push(path);
        }
    }
    all
}

/// Names that follow `crate::` in code, also within braces. Comments and unit tests are left out.
fn targets(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let code: String = code.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    let mut found = BTreeSet::new();
    for (at, path) in code.match_indices("crate::") {
        // `pub(crate)` and names such as `my_crate::` are other things.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(tree) => found.extend(first_names(tree)),
            None => found.extend(name(rest)),
        }
    }
    found
}

/// First names of the branches of an import tree, which begins behind its opening brace.
fn first_names(tree: &str) -> Vec<String> {
    let (mut depth, mut names, mut is_first) = (0, Vec::new(), true);
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => is_first = true,
            c if is_first && !c.is_whitespace() => {
                names.extend(name(&tree[at..]));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

fn name(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let name = &text[..end];
    (!name.is_empty() && name.chars().next().is_some_and(char::is_lowercase)).then(|| name.to_owned())
}

#[test]
fn imports_are_read_from_trees_paths_and_code() {
    let code = "use crate::{\n    a::{b, c},\n    d,\n};\npub(crate) fn f() { crate::e::g() } // crate::h\n#[cfg(test)]\nmod tests { use crate::i; }";
    assert_eq!(targets(code), ["a", "d", "e"].map(String::from).into());
}
