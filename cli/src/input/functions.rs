//! Where functions and types begin in source text, by tree-sitter's grammars.

use std::path::Path;

use tree_sitter::{Language, Node, Parser};
use tree_sitter_language::LanguageFn;

/// What to look for in the tree of a language.
struct Grammar {
    /// Endings of file names.
    endings: &'static [&'static str],
    language: LanguageFn,
    /// Kinds of nodes that are a definition, and hold none to be told apart.
    leaves: &'static [&'static str],
    /// Kinds that may hold definitions, and are one.
    containers: &'static [&'static str],
}

/// Kinds of nodes that belong to the definition after them.
const ATTACHED: &[&str] = &["comment", "line_comment", "block_comment", "attribute_item"];

const JAVASCRIPT: [&[&str]; 2] = [
    &["function_declaration", "generator_function_declaration", "method_definition", "lexical_declaration"],
    &["class_declaration", "export_statement"],
];
const TYPESCRIPT: [&[&str]; 2] = [
    &[
        "function_declaration",
        "generator_function_declaration",
        "method_definition",
        "lexical_declaration",
        "interface_declaration",
        "enum_declaration",
        "type_alias_declaration",
    ],
    &["class_declaration", "abstract_class_declaration", "export_statement", "internal_module", "module"],
];

const GRAMMARS: &[Grammar] = &[
    Grammar {
        endings: &["rs"],
        language: tree_sitter_rust::LANGUAGE,
        leaves: &["function_item", "struct_item", "enum_item", "union_item", "macro_definition"],
        containers: &["impl_item", "trait_item", "mod_item"],
    },
    Grammar {
        endings: &["py", "pyi"],
        language: tree_sitter_python::LANGUAGE,
        leaves: &["function_definition"],
        containers: &["class_definition", "decorated_definition"],
    },
    Grammar {
        endings: &["js", "mjs", "cjs", "jsx"],
        language: tree_sitter_javascript::LANGUAGE,
        leaves: JAVASCRIPT[0],
        containers: JAVASCRIPT[1],
    },
    Grammar {
        endings: &["ts", "mts", "cts"],
        language: tree_sitter_typescript::LANGUAGE_TYPESCRIPT,
        leaves: TYPESCRIPT[0],
        containers: TYPESCRIPT[1],
    },
    Grammar {
        endings: &["tsx"],
        language: tree_sitter_typescript::LANGUAGE_TSX,
        leaves: TYPESCRIPT[0],
        containers: TYPESCRIPT[1],
    },
    Grammar {
        endings: &["go"],
        language: tree_sitter_go::LANGUAGE,
        leaves: &["function_declaration", "method_declaration", "type_declaration"],
        containers: &[],
    },
    Grammar {
        endings: &["java"],
        language: tree_sitter_java::LANGUAGE,
        leaves: &["method_declaration", "constructor_declaration"],
        containers: &["class_declaration", "interface_declaration", "enum_declaration", "record_declaration"],
    },
    Grammar {
        endings: &["c"],
        language: tree_sitter_c::LANGUAGE,
        leaves: &["function_definition", "struct_specifier", "union_specifier", "enum_specifier", "type_definition"],
        containers: &[],
    },
    Grammar {
        endings: &["cc", "cpp", "cxx", "h", "hh", "hpp", "hxx", "cu", "cuh"],
        language: tree_sitter_cpp::LANGUAGE,
        leaves: &["function_definition", "union_specifier", "enum_specifier", "type_definition"],
        containers: &["class_specifier", "struct_specifier", "namespace_definition", "template_declaration"],
    },
];

/// The lines, from 1 and ascending, at which a piece of a file begins: before and after each definition of more than one
/// line, with the comments and attributes above it. What stands before the first definition inside another one, its head,
/// and after the last, its end, stays with them. None of a file whose language is not known.
pub fn cuts(id: &str, text: &str) -> Vec<usize> {
    let ending = Path::new(id).extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let Some(grammar) = GRAMMARS.iter().find(|g| g.endings.contains(&ending.as_str())) else { return Vec::new() };
    let mut parser = Parser::new();
    if parser.set_language(&Language::new(grammar.language)).is_err() {
        return Vec::new();
    }
    let Some(tree) = parser.parse(text, None) else { return Vec::new() };
    let mut cuts = Vec::new();
    // Each level is the definitions of one parent that are left; levels are few, trees may be deep.
    let mut open = grammar.definitions(tree.root_node());
    for definition in &open {
        cuts.extend([definition.first, definition.last + 1]);
    }
    while let Some(parent) = open.pop() {
        if parent.leaf {
            continue;
        }
        let inner = grammar.definitions(parent.node);
        for (i, definition) in inner.iter().enumerate() {
            if i > 0 {
                cuts.push(definition.first);
            }
            if i + 1 < inner.len() {
                cuts.push(definition.last + 1);
            }
        }
        open.extend(inner);
    }
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

struct Definition<'a> {
    node: Node<'a>,
    leaf: bool,
    /// Its lines, from 1.
    first: usize,
    last: usize,
}

impl Grammar {
    /// The outermost definitions inside a node that have more than one line, in the order of the text.
    fn definitions<'a>(&self, parent: Node<'a>) -> Vec<Definition<'a>> {
        let mut found = Vec::new();
        let mut cursor = parent.walk();
        let mut next = cursor.goto_first_child();
        while next {
            let node = cursor.node();
            let leaf = self.leaves.contains(&node.kind());
            if leaf || self.containers.contains(&node.kind()) {
                let (first, last) = (first_line(node), last_line(node));
                if first < last {
                    found.push(Definition { node, leaf, first, last });
                }
            } else if cursor.goto_first_child() {
                continue;
            }
            // The next node that is not inside this one; the cursor never leaves the parent.
            next = loop {
                if cursor.goto_next_sibling() {
                    break true;
                }
                if !cursor.goto_parent() || cursor.node() == parent {
                    break false;
                }
            };
        }
        found
    }
}

/// The first line of a definition, or of what is attached to it.
fn first_line(mut node: Node) -> usize {
    while let Some(above) = node.prev_sibling() {
        let adjacent = last_line(above) >= node.start_position().row;
        // A comment after code on its line belongs to that.
        let own_line = above.prev_sibling().is_none_or(|before| last_line(before) < above.start_position().row + 1);
        if !adjacent || !own_line || !ATTACHED.contains(&above.kind()) {
            break;
        }
        node = above;
    }
    node.start_position().row + 1
}

/// The last line, from 1; a node that ends with a line's end ends on that line.
fn last_line(node: Node) -> usize {
    let end = node.end_position();
    if end.column == 0 && end.row > node.start_position().row { end.row } else { end.row + 1 }
}

#[cfg(test)]
mod tests {
    use super::cuts;

    /// The pieces that cuts make of a text, by the lines of each.
    fn pieces(id: &str, text: &str) -> Vec<String> {
        let (cuts, mut pieces) = (cuts(id, text), Vec::new());
        for (i, line) in text.lines().enumerate() {
            if i == 0 || cuts.contains(&(i + 1)) {
                pieces.push(String::new());
            }
            pieces.last_mut().unwrap().push_str(&format!("{line}\n"));
        }
        pieces.iter().map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect()
    }

    const RUST: &[&str] = &[
        "use a::b;\nconst C: u8 = 1; // one",
        "/// Adds.\n#[inline]\nfn add(a: u8) -> u8 {\n    fn inner() {\n    }\n    a\n}",
        "fn short() {}\nfn shorter() {}",
        "impl A {\n    const B: u8 = 0;\n\n    /// First.\n    fn first() {\n    }",
        "// Second.\n    fn second() {\n    }\n}",
        "struct D {\n    e: u8,\n}",
        "// the end",
    ];

    #[test]
    fn rust_is_cut_at_functions_with_what_is_above_them() {
        assert_eq!(pieces("src/a.rs", &RUST.join("\n\n")), RUST);
        assert_eq!(pieces("A.RS", &RUST.join("\n")), RUST, "without blank lines");
        assert_eq!(
            pieces("a.rs", &RUST.join("\r\n\r\n").replace("\r\n", "\n").replace('\n', "\r\n")).len(),
            RUST.len()
        );
        assert!(cuts("a.txt", &RUST.join("\n\n")).is_empty());
    }

    #[test]
    fn every_language_is_cut_at_its_definitions() {
        let cases: &[(&str, &[&str])] = &[
            (
                "a.py",
                &[
                    "import a",
                    "# b\n@c\ndef b():\n    pass",
                    "class D:\n    x = 1\n    def e(self):\n        pass",
                    "@f\n    def g(self):\n        pass",
                    "h = 2",
                ],
            ),
            (
                "a.js",
                &[
                    "import a from 'a';",
                    "// b\nfunction b() {\n}",
                    "export class C {\n  d() {\n  }",
                    "e() {\n  }\n}",
                    "const f = () => {\n};",
                ],
            ),
            ("a.ts", &["interface A {\n  b: string;\n}", "export function c(): void {\n}"]),
            ("a.tsx", &["function A() {\n  return <b/>;\n}", "function C() {\n  return <d/>;\n}"]),
            ("a.go", &["package a", "// B is.\nfunc B() {\n}", "type C struct {\n\td int\n}"]),
            ("a.java", &["import a.B;", "class C {\n  int d;\n  void e() {\n  }", "/** F. */\n  void f() {\n  }\n}"]),
            ("a.c", &["#include <a.h>", "/* b */\nint b(void) {\n  return 1;\n}", "struct c {\n  int d;\n}"]),
            (
                "a.hpp",
                &[
                    "#pragma once",
                    "namespace a {\nclass B {\n  void c() {\n  }",
                    "void d() {\n  }\n};",
                    "template <class T>\nT e() {\n}\n}",
                ],
            ),
        ];
        for (id, expected) in cases {
            assert_eq!(pieces(id, &expected.join("\n\n")), *expected, "{id}");
        }
    }

    #[test]
    fn texts_that_are_no_source_and_deep_ones_are_cut_somewhere_or_not() {
        for text in ["", "}}}{{{", "fn", "\u{0}\u{1}", &"(".repeat(100_000), &"mod a {\n".repeat(20_000)] {
            let lines = text.lines().count();
            assert!(cuts("a.rs", text).iter().all(|line| (1..=lines + 1).contains(line)), "{:.20}", text);
        }
    }
}
