//! Folders of `src`: which folder may import which, and circles between files.
//!
//! The table below is where the folders are defined; `ARCHITECTURE.md` repeats it. Imports are read from the code: a path is followed
//! through re-exports to the file that defines the item, so that a folder's file that only declares and re-exports its modules
//! depends on none of them. Files must not import each other in a circle, except that the file `x/y.rs` may use what its folder's file
//! `x.rs` defines, as an `impl` that is split into files does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Folders from the lowest to the highest, with those that each may import.
const FOLDERS: [(&str, &[&str]); 11] = [
    ("base", &[]),
    ("protocol", &["base"]),
    ("store", &["base", "protocol"]),
    ("engine", &["base", "protocol", "store"]),
    ("service", &["base", "protocol", "store", "engine"]),
    ("transport", &["base", "protocol", "service"]),
    ("client", &["base", "protocol"]),
    ("agents", &["base", "protocol", "engine", "client"]),
    ("server", &["base", "protocol", "store", "engine", "service", "transport"]),
    ("testing", &["base", "protocol", "store", "engine", "service", "client", "server"]),
    ("cli", &["base", "protocol", "store", "engine", "service", "transport", "client", "agents", "server"]),
];

/// Maximum number of folders, so that a newcomer can keep them in mind.
const MAX_FOLDERS: usize = 12;

#[test]
fn folders_import_only_from_those_in_the_table() {
    let sources = Sources::read(&root().join("src"));
    let folders: BTreeSet<&str> = FOLDERS.iter().map(|(folder, _)| *folder).collect();
    let found: BTreeSet<&str> = sources.files.keys().filter_map(|path| path.first()).map(String::as_str).collect();
    assert_eq!(found, &folders | &BTreeSet::from(["main"]), "each folder is in the table");
    assert!(folders.len() <= MAX_FOLDERS);
    let mut forbidden = Vec::new();
    for (importer, imported) in sources.imports() {
        let Some((folder, allowed)) =
            FOLDERS.iter().find(|(folder, _)| importer.first().is_some_and(|it| it == folder))
        else {
            continue;
        };
        for target in imported.iter().filter(|target| target.first().is_some_and(|it| it != folder)) {
            if !allowed.contains(&&*target[0]) {
                forbidden.push(format!("{} imports {}", importer.join("::"), target.join("::")));
            }
        }
    }
    assert!(forbidden.is_empty(), "{}", forbidden.join("\n"));
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    let circles = Sources::read(&root().join("src")).circles();
    assert!(circles.is_empty(), "{}", circles.join("\n\n"));
}

#[test]
fn architecture_lists_the_folders() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (folder, allowed) in FOLDERS {
        let allowed: Vec<String> = allowed.iter().map(|folder| format!("`{folder}`")).collect();
        let allowed = if allowed.is_empty() { "–".to_owned() } else { allowed.join(", ") };
        let row = text.lines().find(|line| line.starts_with(&format!("| `{folder}` |")));
        assert!(
            row.is_some_and(|row| row.ends_with(&format!("| {allowed} |"))),
            "ARCHITECTURE.md: `{folder}` | {allowed}"
        );
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Path of a module, without `crate`.
type Module = Vec<String>;

/// Code of the crate by module, without comments and unit tests.
struct Sources {
    files: BTreeMap<Module, File>,
}

struct File {
    code: String,
    /// Modules that `mod x;` declares.
    modules: BTreeSet<String>,
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
    uses: Vec<Use>,
}

/// Leaf of a `use` declaration.
struct Use {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

impl Sources {
    fn read(source: &Path) -> Self {
        let paths = files(source).into_iter().filter(|path| !path.ends_with("lib.rs"));
        let read = |path: PathBuf| {
            let module = path.strip_prefix(source).unwrap().with_extension("");
            let module = module.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
            (module, File::parse(&fs::read_to_string(&path).unwrap()))
        };
        Self { files: paths.map(read).collect() }
    }

    /// Returns the files that each file imports from, by the rule at the top.
    fn imports(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut imports: BTreeMap<Module, BTreeSet<Module>> =
            self.files.keys().map(|module| (module.clone(), BTreeSet::new())).collect();
        for (importer, file) in &self.files {
            for path in self.paths(importer, file) {
                if let Some(target) = self.definition(&path, 0).filter(|target| target != importer) {
                    imports.get_mut(importer).unwrap().insert(target);
                }
            }
        }
        imports
    }

    /// Describes each circle: its files, and the imports between them.
    fn circles(&self) -> Vec<String> {
        let mut imports = self.imports();
        for (importer, imported) in &mut imports {
            imported.retain(|target| !importer.starts_with(target));
        }
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            imports.keys().map(|module| (module, reachable(module, &imports))).collect();
        // A file in a circle reaches itself, and exactly the files of its circle reach it back.
        let circle = |module: &Module| -> BTreeSet<&Module> {
            reached[module].iter().copied().filter(|other| reached[other].contains(module)).collect()
        };
        let circles: BTreeSet<_> = imports.keys().map(circle).filter(|circle| !circle.is_empty()).collect();
        let path = |module: &Module| format!("{}.rs", module.join("/"));
        let describe = |circle: BTreeSet<&Module>| {
            let edges = circle.iter().flat_map(|importer| {
                let targets = imports[*importer].iter().filter(|target| circle.contains(target));
                targets.map(|target| format!("\n  {} imports {}", path(importer), path(target)))
            });
            let edges: String = edges.collect();
            let files: Vec<_> = circle.iter().map(|module| path(module)).collect();
            format!("circle of {}:{edges}", files.join(", "))
        };
        circles.into_iter().map(describe).collect()
    }

    /// Returns absolute paths of the items that a file uses: imported, in code, and below modules that it imports or declares.
    fn paths(&self, module: &Module, file: &File) -> Vec<Vec<String>> {
        let mut paths = Vec::new();
        let mut modules: BTreeMap<&str, Module> = BTreeMap::new();
        modules.extend(file.modules.iter().map(|name| (&**name, [&module[..], std::slice::from_ref(name)].concat())));
        for item in &file.uses {
            let Some(path) = self.absolute(module, &item.path) else { continue };
            if self.files.contains_key(&path) {
                modules.insert(&item.name, path);
            } else if item.name != "*" && (!item.is_public || mentions(&file.code, &item.name)) {
                paths.push(path);
            }
        }
        for path in paths_in(&file.code) {
            match modules.get(&*path[0]) {
                Some(start) => paths.push([&start[..], &path[1..]].concat()),
                None => paths.extend(self.absolute(module, &path)),
            }
        }
        paths
    }

    /// Resolves `crate`, `self`, `super` and names of child modules. Returns `None` for other crates and local names.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Vec<String>> {
        let (mut base, mut rest) = (module.clone(), path);
        match &*path[0] {
            "crate" => (base, rest) = (Module::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            name if self.files.get(module).is_some_and(|file| file.modules.contains(name)) => {}
            _ => return None,
        }
        Some([&base[..], rest].concat())
    }

    /// Returns the file that defines an item, through re-exports. `None` for modules and items of other crates.
    fn definition(&self, path: &[String], depth: usize) -> Option<Module> {
        let split = (0..=path.len()).rev().find(|at| self.files.contains_key(&path[..*at]))?;
        let (module, rest) = (path[..split].to_vec(), &path[split..]);
        let (name, file) = (rest.first()?, &self.files[&module]);
        if file.items.contains(name) || depth > 8 {
            return Some(module);
        }
        if let Some(item) = file.uses.iter().find(|item| item.name == *name) {
            let path = self.absolute(&module, &item.path)?;
            return self.definition(&[&path[..], &rest[1..]].concat(), depth + 1);
        }
        let globs = file.uses.iter().filter(|item| item.name == "*");
        let through = globs.filter_map(|item| {
            let path = self.absolute(&module, &item.path[..item.path.len() - 1])?;
            self.files.get(&path)?.items.contains(name).then_some(path)
        });
        // Generated items belong to the file that includes them.
        Some(through.into_iter().next().unwrap_or(module))
    }
}

impl File {
    fn parse(source: &str) -> Self {
        let code = source.split("#[cfg(test)]\nmod ").next().unwrap();
        let code: String = code.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
        let (mut file, mut rest) = (
            Self { code: String::new(), modules: BTreeSet::new(), items: BTreeSet::new(), uses: Vec::new() },
            String::new(),
        );
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let (is_public, declaration) = without_visibility(line.trim_start());
            if let Some(start) = declaration.strip_prefix("use ") {
                let mut text = start.to_owned();
                while !text.contains(';') {
                    text.push_str(lines.next().unwrap());
                }
                leaves(
                    &text.split(';').next().unwrap().replace(char::is_whitespace, " "),
                    &[],
                    is_public,
                    &mut file.uses,
                );
                continue;
            }
            let mut words =
                declaration.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let kind = words.by_ref().find(|word| !["async", "unsafe"].contains(word)).unwrap_or_default();
            let name = words.find(|word| !["fn", "mut"].contains(word)).unwrap_or_default().to_owned();
            match kind {
                "mod" if line.ends_with(';') => drop(file.modules.insert(name)),
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "macro_rules" | "union" => {
                    file.items.insert(name);
                }
                _ => {}
            }
            rest.push_str(line);
            rest.push('\n');
        }
        file.code = rest;
        file
    }
}

/// Returns the files that a file imports, and those that they import. The file itself is among them if it is in a circle.
fn reachable<'a>(start: &'a Module, imports: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let (mut reached, mut pending) = (BTreeSet::new(), vec![start]);
    while let Some(module) = pending.pop() {
        pending.extend(imports[module].iter().filter(|target| reached.insert(*target)));
    }
    reached
}

fn without_visibility(line: &str) -> (bool, &str) {
    let Some(rest) = line.strip_prefix("pub") else { return (false, line) };
    match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((_, rest)) => (true, rest.trim_start()),
        None => (true, rest.trim_start()),
    }
}

/// Collects the leaves of an import tree.
fn leaves(tree: &str, prefix: &[String], is_public: bool, found: &mut Vec<Use>) {
    let tree = tree.trim();
    if let Some((start, inner)) = tree.split_once('{') {
        let names = start.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
        let prefix = [prefix, &names.collect::<Vec<_>>()].concat();
        let inner = &inner[..inner.rfind('}').unwrap()];
        let (mut depth, mut from) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    if !inner[from..at].trim().is_empty() {
                        leaves(&inner[from..at], &prefix, is_public, found);
                    }
                    from = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (path, alias) =
        tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim().to_owned())));
    let mut path = [prefix, &path.split("::").map(|name| name.trim().to_owned()).collect::<Vec<_>>()].concat();
    if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
        path.pop();
    }
    found.push(Use { name: alias.unwrap_or_else(|| path[path.len() - 1].clone()), path, is_public });
}

/// Returns the paths of two or more names in code.
fn paths_in(code: &str) -> Vec<Vec<String>> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_name(c)).map(|word| word.trim_end_matches(':'));
    let paths = words.filter(|word| word.contains("::") && !word.starts_with(':'));
    paths.map(|word| word.split("::").map(str::to_owned).collect()).collect()
}

/// Returns true if code contains a name as a word.
fn mentions(code: &str, name: &str) -> bool {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
}

pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
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

#[test]
fn imports_are_followed_to_the_definition() {
    let sources = parse(&[
        ("a", "mod b;\nmod c;\npub use self::b::Item;\n"),
        ("a::b", "use super::c::{self, helper};\npub struct Item;\nfn f() { c::other() } // crate::d::Left\n"),
        ("a::c", "pub(crate) fn helper() {}\npub fn other() {}\n#[cfg(test)]\nmod tests { use crate::d::Left; }"),
        ("d", "use crate::a::Item;\npub struct Left;\nfn g() { crate::a::c::helper() }"),
    ]);
    let imports = sources.imports();
    assert_eq!(imports[&module("a")], BTreeSet::new(), "declarations and re-exports are no imports");
    assert_eq!(imports[&module("a::b")], BTreeSet::from([module("a::c")]));
    assert_eq!(imports[&module("a::c")], BTreeSet::new());
    assert_eq!(imports[&module("d")], BTreeSet::from([module("a::b"), module("a::c")]));
}

#[test]
fn circles_are_found_with_their_files_and_imports() {
    let sources = parse(&[
        ("a", "mod b;\nmod c;\nmod d;\npub struct Split;\nfn f() { b::first() }"),
        ("a::b", "use super::{Split, c};\npub fn first() { c::second() }"),
        ("a::c", "pub fn second() { crate::e::third() }"),
        ("a::d", "use super::b::first;\npub fn between() { crate::g::x() }"),
        ("e", "use crate::a::b::first;\npub fn third() {}"),
        ("f", "pub fn x() {}\nfn y() { crate::g::x() }"),
        ("g", "use crate::f;\npub fn x() { f::x() }"),
    ]);
    assert_eq!(
        sources.circles(),
        [
            "circle of a/b.rs, a/c.rs, e.rs:\n  a/b.rs imports a/c.rs\n  a/c.rs imports e.rs\n  e.rs imports a/b.rs",
            "circle of f.rs, g.rs:\n  f.rs imports g.rs\n  g.rs imports f.rs",
        ],
        "neither `a` and `a::b` nor `a::d`, which is between two circles, are one"
    );
}

fn parse(files: &[(&str, &str)]) -> Sources {
    Sources { files: files.iter().map(|(path, code)| (module(path), File::parse(code))).collect() }
}

fn module(path: &str) -> Module {
    path.split("::").map(str::to_owned).collect()
}
