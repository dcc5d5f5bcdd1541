//! Finds the imports between the files of a crate, and the cycles of them.
//!
//! A file imports another when its code names an item which the other file defines: in a `use`, or
//! by a path in the code. A re-export (`pub use`) is followed to the file of the definition. A
//! parent module that declares a child and re-exports its items does not import the child by that
//! alone. Unit tests are left out. Calls of methods are not seen: a method has no path.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, UseTree, Visibility};

/// An item of one file that the code of another file names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    pub from: PathBuf,
    pub to: PathBuf,
    pub item: String,
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}: {}", self.from.display(), self.to.display(), self.item)
    }
}

/// Sources of a crate: the text of each file, by its path below `src`.
pub type Sources = BTreeMap<PathBuf, String>;

/// Returns the imports between the files of a crate, sorted. `externals` are the names of the
/// other crates that its code may name. The errors are names that lead nowhere and files that
/// belong to no module.
pub fn find_imports(sources: &Sources, externals: &[String]) -> Result<Vec<Import>, Vec<String>> {
    let mut imports = BTreeSet::new();
    let mut errors = Vec::new();
    let mut read = BTreeSet::new();
    for root in ["lib.rs", "main.rs"].map(PathBuf::from) {
        if sources.contains_key(&root) {
            let mut tree = ModuleTree::new(sources, externals);
            tree.read_file(&root, None, "crate");
            tree.collect_imports(&mut imports);
            errors.append(&mut tree.errors);
            read.append(&mut tree.files);
        }
    }
    let unread = sources.keys().filter(|file| !read.contains(*file));
    errors.extend(unread.map(|file| format!("{}: no module is in this file", file.display())));
    if errors.is_empty() { Ok(imports.into_iter().collect()) } else { Err(errors) }
}

/// Returns the groups of files that import one another, each as the imports inside it.
pub fn find_cycles(imports: &[Import]) -> Vec<Vec<Import>> {
    let mut reached: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    let starts: BTreeSet<&Path> = imports.iter().map(|import| import.from.as_path()).collect();
    for start in starts {
        let mut found = BTreeSet::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            let next = imports.iter().filter(|import| import.from == file);
            open.extend(next.map(|import| import.to.as_path()).filter(|to| found.insert(*to)));
        }
        reached.insert(start, found);
    }
    let both_ways = |a: &Path, b: &Path| {
        let leads = |a: &Path, b: &Path| reached.get(a).is_some_and(|found| found.contains(b));
        leads(a, b) && leads(b, a)
    };
    let mut groups: BTreeMap<&Path, Vec<Import>> = BTreeMap::new();
    for import in imports.iter().filter(|import| both_ways(&import.from, &import.to)) {
        // The first file of a group stands for it.
        let first = reached.keys().find(|file| both_ways(file, &import.from));
        groups.entry(first.expect("a file in a cycle")).or_default().push(import.clone());
    }
    groups.into_values().collect()
}

/// A place in `ModuleTree::modules`.
type ModuleId = usize;

/// A name in a module, by its definition there.
#[derive(Clone)]
enum Binding {
    Module(ModuleId),
    Item,
    Use(Vec<String>),
}

/// The end of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(ModuleId),
    /// An item that this module defines.
    Item(ModuleId),
    External,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReferenceKind {
    Use,
    ReExport,
    InCode,
    Macro,
}

/// A path that the code of a module names.
struct Reference {
    module: ModuleId,
    path: Vec<String>,
    kind: ReferenceKind,
}

struct Module {
    file: PathBuf,
    parent: Option<ModuleId>,
    /// Folder of the files of its children.
    folder: PathBuf,
    names: BTreeMap<String, Vec<Binding>>,
    globs: Vec<Vec<String>>,
    /// Words in the arguments of macros that stand where an item may stand. Such a macro may
    /// define them.
    made_by_macros: BTreeSet<String>,
}

/// The modules of a crate, with all paths which their code names.
struct ModuleTree<'a> {
    sources: &'a Sources,
    externals: &'a [String],
    modules: Vec<Module>,
    references: Vec<Reference>,
    /// Files of macros by example. Their names have no module.
    macros: BTreeMap<String, PathBuf>,
    files: BTreeSet<PathBuf>,
    errors: Vec<String>,
    /// The module whose code is being read.
    current: ModuleId,
}

impl<'a> ModuleTree<'a> {
    fn new(sources: &'a Sources, externals: &'a [String]) -> Self {
        ModuleTree {
            sources,
            externals,
            modules: Vec::new(),
            references: Vec::new(),
            macros: BTreeMap::new(),
            files: BTreeSet::new(),
            errors: Vec::new(),
            current: 0,
        }
    }

    fn complain(&mut self, module: ModuleId, message: &str) {
        self.errors.push(format!("{}: {message}", self.modules[module].file.display()));
    }

    fn add_module(&mut self, file: &Path, parent: Option<ModuleId>, folder: PathBuf) -> ModuleId {
        self.modules.push(Module {
            file: file.to_owned(),
            parent,
            folder,
            names: BTreeMap::new(),
            globs: Vec::new(),
            made_by_macros: BTreeSet::new(),
        });
        self.modules.len() - 1
    }

    fn read_file(&mut self, file: &Path, parent: Option<ModuleId>, name: &str) -> ModuleId {
        let beside = file.parent().unwrap_or(Path::new("")).to_owned();
        let children_beside = parent.is_none() || file.ends_with("mod.rs");
        let folder = if children_beside { beside } else { file.with_extension("") };
        let module = self.add_module(file, parent, folder);
        self.files.insert(file.to_owned());
        match syn::parse_file(&self.sources[file]) {
            Ok(parsed) => self.read_items(module, &parsed.items),
            Err(error) => self.complain(module, &format!("module {name}: {error}")),
        }
        module
    }

    fn read_items(&mut self, module: ModuleId, items: &[Item]) {
        let outer = std::mem::replace(&mut self.current, module);
        for item in items {
            self.visit_item(item);
        }
        self.current = outer;
    }

    fn bind(&mut self, name: impl ToString, binding: Binding) {
        self.modules[self.current].names.entry(name.to_string()).or_default().push(binding);
    }

    fn refer(&mut self, path: Vec<String>, kind: ReferenceKind) {
        self.references.push(Reference { module: self.current, path, kind });
    }

    fn read_module(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        let outer = self.current;
        let folder = self.modules[outer].folder.clone();
        let child = if let Some((_, items)) = &item.content {
            let file = self.modules[outer].file.clone();
            let child = self.add_module(&file, Some(outer), folder.join(&name));
            self.read_items(child, items);
            child
        } else {
            let candidates = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            let Some(file) = candidates.iter().find(|file| self.sources.contains_key(*file)) else {
                self.complain(outer, &format!("module {name} has no file"));
                return;
            };
            self.read_file(file, Some(outer), &name)
        };
        self.bind(name, Binding::Module(child));
    }

    fn read_use_tree(&mut self, tree: &UseTree, mut path: Vec<String>, kind: ReferenceKind) {
        let (name, bound) = match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                return self.read_use_tree(&tree.tree, path, kind);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.read_use_tree(tree, path.clone(), kind);
                }
                return;
            }
            UseTree::Glob(_) => {
                self.modules[self.current].globs.push(path.clone());
                return self.refer(path, kind);
            }
            UseTree::Name(tree) => (&tree.ident, &tree.ident),
            UseTree::Rename(tree) => (&tree.ident, &tree.rename),
        };
        let is_self = name == "self";
        let bound = match path.last() {
            Some(last) if is_self && bound == "self" => last.clone(),
            _ => bound.to_string(),
        };
        if !is_self {
            path.push(name.to_string());
        }
        self.refer(path.clone(), kind);
        self.bind(bound, Binding::Use(path));
    }

    /// Notes the paths among the tokens of a macro.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // The last token, as far as it decides about the next word.
        let (mut colons, mut dot) = (0, false);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons < 2 {
                        self.end_path(&mut path);
                    }
                    if !dot {
                        path.push(ident.to_string());
                    }
                    (colons, dot) = (0, false);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Punct(punct) => {
                    self.end_path(&mut path);
                    (colons, dot) = (0, punct.as_char() == '.');
                }
                TokenTree::Group(group) => {
                    self.end_path(&mut path);
                    (colons, dot) = (0, false);
                    self.read_tokens(group.stream());
                }
                TokenTree::Literal(_) => {
                    self.end_path(&mut path);
                    (colons, dot) = (0, false);
                }
            }
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if !path.is_empty() {
            self.refer(path, ReferenceKind::InCode);
        }
    }

    /// Returns the definitions of `path` in `module`: none, if it leads nowhere.
    fn resolve(&self, module: ModuleId, path: &[String], seen: &mut Seen) -> BTreeSet<Target> {
        let Some((first, mut rest)) = path.split_first() else { return BTreeSet::new() };
        let mut at = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(0)]),
            "self" => BTreeSet::from([Target::Module(module)]),
            "super" => self.modules[module].parent.map(Target::Module).into_iter().collect(),
            name => self.look_up(module, name, seen),
        };
        if at.is_empty() && self.externals.contains(first) {
            return BTreeSet::from([Target::External]);
        }
        while let Some((name, after)) = rest.split_first() {
            let modules = at.iter().filter_map(|target| match target {
                Target::Module(module) => Some(*module),
                _ => None,
            });
            let Some(inner) = modules.min() else {
                // The rest names a variant, a constant or a function of a type.
                at.retain(|target| !matches!(target, Target::Module(_)));
                return at;
            };
            at = match name.as_str() {
                "super" => self.modules[inner].parent.map(Target::Module).into_iter().collect(),
                name => self.look_up(inner, name, seen),
            };
            rest = after;
        }
        at
    }

    fn look_up(&self, module: ModuleId, name: &str, seen: &mut Seen) -> BTreeSet<Target> {
        let mut found = BTreeSet::new();
        if !seen.insert((module, name.to_owned())) {
            return found;
        }
        let here = &self.modules[module];
        for binding in here.names.get(name).into_iter().flatten() {
            match binding {
                Binding::Module(child) => _ = found.insert(Target::Module(*child)),
                Binding::Item => _ = found.insert(Target::Item(module)),
                Binding::Use(path) => found.extend(self.resolve(module, path, seen)),
            }
        }
        for path in here.globs.iter().filter(|_| found.is_empty()).collect::<Vec<_>>() {
            for target in self.resolve(module, path, &mut seen.clone()) {
                if let Target::Module(other) = target {
                    found.extend(self.look_up(other, name, seen));
                }
            }
        }
        if found.is_empty() && here.made_by_macros.contains(name) {
            found.insert(Target::Item(module));
        }
        seen.remove(&(module, name.to_owned()));
        found
    }

    fn is_ancestor(&self, ancestor: ModuleId, of: ModuleId) -> bool {
        let mut at = Some(of);
        while let Some(module) = at {
            if module == ancestor {
                return true;
            }
            at = self.modules[module].parent;
        }
        false
    }

    fn collect_imports(&mut self, imports: &mut BTreeSet<Import>) {
        for reference in std::mem::take(&mut self.references) {
            let Reference { module, path, kind } = reference;
            let from = self.modules[module].file.clone();
            let item = path.join("::");
            if kind == ReferenceKind::Macro {
                if let Some(to) = self.macros.get(&item).filter(|to| **to != from) {
                    imports.insert(Import { from, to: to.clone(), item: format!("{item}!") });
                }
                continue;
            }
            let targets = self.resolve(module, &path, &mut Seen::new());
            let in_crate = matches!(path[0].as_str(), "crate" | "self" | "super");
            if targets.is_empty() && (kind != ReferenceKind::InCode || in_crate) {
                self.complain(module, &format!("`{item}` leads nowhere"));
            }
            for target in targets {
                // The `use` of a module imports nothing yet: paths through its name do.
                let Target::Item(definer) = target else { continue };
                let to = self.modules[definer].file.clone();
                let re_exports =
                    kind == ReferenceKind::ReExport && self.is_ancestor(module, definer);
                if to != from && !re_exports {
                    imports.insert(Import { from: from.clone(), to, item: item.clone() });
                }
            }
        }
    }
}

/// Names that are being looked up, against circles of `use`.
type Seen = BTreeSet<(ModuleId, String)>;

impl<'ast> Visit<'ast> for ModuleTree<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes_of(item).iter().any(is_for_tests) {
            // A file of unit tests counts as read.
            if let Item::Mod(item) = item {
                let file = self.modules[self.current].folder.join(format!("{}.rs", item.ident));
                let below = file.with_extension("");
                let of_tests = self.sources.keys().filter(|f| **f == file || f.starts_with(&below));
                self.files.extend(of_tests.cloned());
            }
            return;
        }
        if attributes_of(item).iter().any(|attribute| attribute.path().is_ident("path")) {
            self.complain(self.current, "a module with a `path` of its own");
        }
        match item {
            Item::Mod(item) => return self.read_module(item),
            Item::Use(item) => {
                let private = matches!(item.vis, Visibility::Inherited);
                let kind = if private { ReferenceKind::Use } else { ReferenceKind::ReExport };
                if item.leading_colon.is_none() {
                    self.read_use_tree(&item.tree, Vec::new(), kind);
                }
                return;
            }
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    let file = self.modules[self.current].file.clone();
                    self.macros.insert(name.to_string(), file);
                    self.bind(name, Binding::Item);
                } else {
                    let mut words = BTreeSet::new();
                    collect_words(item.mac.tokens.clone(), &mut words);
                    self.modules[self.current].made_by_macros.append(&mut words);
                }
            }
            Item::Const(item) => self.bind(&item.ident, Binding::Item),
            Item::Enum(item) => self.bind(&item.ident, Binding::Item),
            Item::Fn(item) => self.bind(&item.sig.ident, Binding::Item),
            Item::Static(item) => self.bind(&item.ident, Binding::Item),
            Item::Struct(item) => self.bind(&item.ident, Binding::Item),
            Item::Trait(item) => self.bind(&item.ident, Binding::Item),
            Item::Type(item) => self.bind(&item.ident, Binding::Item),
            Item::Union(item) => self.bind(&item.ident, Binding::Item),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let for_tests = match item {
            ImplItem::Fn(item) => item.attrs.iter().any(is_for_tests),
            ImplItem::Const(item) => item.attrs.iter().any(is_for_tests),
            _ => false,
        };
        if !for_tests {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.refer(names, ReferenceKind::InCode);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(name) = called.path.get_ident() {
            self.refer(vec![name.to_string()], ReferenceKind::Macro);
        } else {
            self.visit_path(&called.path);
        }
        self.read_tokens(called.tokens.clone());
    }

    /// `pub(in path)` and `pub(super)` import nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.read_tokens(list.tokens.clone());
            if list.tokens.to_string().contains("\"crate::") {
                self.complain(self.current, "an attribute names a path in a string");
            }
        }
    }
}

fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

fn attributes_of(item: &Item) -> &[syn::Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn collect_words(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => _ = words.insert(ident.to_string()),
            TokenTree::Group(group) => collect_words(group.stream(), words),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Sources {
        files.iter().map(|(file, text)| (PathBuf::from(file), (*text).to_owned())).collect()
    }

    fn imports_of(files: &[(&str, &str)]) -> Vec<String> {
        let found = find_imports(&sources(files), &["std".to_owned()]).expect("names that resolve");
        let mut lines: Vec<String> = found.iter().map(Import::to_string).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn an_import_leads_to_the_file_of_the_definition() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::{Low, c::Deep as Renamed};");
        let a = ("a.rs", "pub mod c; pub struct Low; use std::io;");
        let c = ("a/c.rs", "pub struct Deep;");
        let b = ("b.rs", "use crate::{Low, Renamed}; fn f(_: crate::a::c::Deep) {}");
        assert_eq!(
            imports_of(&[lib, a, c, b]),
            [
                "b.rs -> a.rs: crate::Low",
                "b.rs -> a/c.rs: crate::Renamed",
                "b.rs -> a/c.rs: crate::a::c::Deep",
            ]
        );
    }

    #[test]
    fn a_parent_that_uses_the_item_it_re_exports_imports_it() {
        let child = ("a.rs", "pub fn low() {}");
        let only_re_export = ("lib.rs", "mod a; pub use a::low;");
        assert!(imports_of(&[only_re_export, child]).is_empty());
        let use_too = ("lib.rs", "mod a; pub use a::low; fn f() { low() }");
        assert_eq!(imports_of(&[use_too, child]), ["lib.rs -> a.rs: low"]);
        let sibling = ("b.rs", "pub use crate::a::low;");
        let both = ("lib.rs", "mod a; mod b;");
        assert_eq!(imports_of(&[both, child, sibling]), ["b.rs -> a.rs: crate::a::low"]);
    }

    #[test]
    fn the_name_of_a_module_and_globs_lead_to_its_items() {
        let lib = ("lib.rs", "mod a; mod b; mod c;");
        let a = ("a.rs", "pub fn low() {} pub enum Kind { One }");
        let b = ("b.rs", "use crate::a; fn f() { a::low() }");
        let c = ("c.rs", "use super::a::*; fn f() -> Kind { Kind::One }");
        assert_eq!(
            imports_of(&[lib, a, b, c]),
            ["b.rs -> a.rs: a::low", "c.rs -> a.rs: Kind", "c.rs -> a.rs: Kind::One"]
        );
    }

    #[test]
    fn macros_are_followed_and_may_define_items() {
        let lib = ("lib.rs", "mod a; mod b;");
        let a = ("a.rs", "macro_rules! make { ($n:ident) => { pub struct $n; } } make!(Id);");
        let b = ("b.rs", "fn f() { assert!(x == crate::a::Id, \"crate::a::no\"); }");
        assert_eq!(imports_of(&[lib, a, b]), ["b.rs -> a.rs: crate::a::Id"]);
        let below = ("lib.rs", "macro_rules! make { () => {} } mod a;");
        let caller = ("a.rs", "fn f() { make!() }");
        assert_eq!(imports_of(&[below, caller]), ["a.rs -> lib.rs: make!"]);
    }

    #[test]
    fn unit_tests_and_inline_modules_belong_to_their_file() {
        let lib = ("lib.rs", "mod a; fn high() {}");
        let a = ("a.rs", "mod b { fn f() { super::low() } } fn low() {} #[cfg(test)] mod tests;");
        let tests = ("a/tests.rs", "use crate::high;");
        assert!(imports_of(&[lib, a, tests]).is_empty());
    }

    #[test]
    fn a_name_without_a_definition_is_an_error() {
        let errors = |files: &[(&str, &str)]| {
            find_imports(&sources(files), &[]).expect_err("a name that leads nowhere")
        };
        assert_eq!(errors(&[("lib.rs", "use a::B;")]), ["lib.rs: `a::B` leads nowhere"]);
        assert_eq!(
            errors(&[("lib.rs", "fn f() { crate::b() }")]),
            ["lib.rs: `crate::b` leads nowhere"]
        );
        assert_eq!(errors(&[("lib.rs", "mod a;")]), ["lib.rs: module a has no file"]);
        assert_eq!(errors(&[("lib.rs", ""), ("a.rs", "")]), ["a.rs: no module is in this file"]);
    }

    #[test]
    fn files_that_import_one_another_are_a_cycle() {
        let import = |from: &str, to: &str| Import {
            from: from.into(),
            to: to.into(),
            item: "x".to_owned(),
        };
        let down = import("top", "a");
        let group = [import("a", "b"), import("b", "c"), import("c", "a")];
        let other = [import("d", "e"), import("e", "d")];
        let all: Vec<Import> = [std::slice::from_ref(&down), &group[..], &other[..]].concat();
        assert_eq!(find_cycles(&all), [group.to_vec(), other.to_vec()]);
        assert!(find_cycles(&[down, import("a", "b"), import("top", "b")]).is_empty());
    }
}
