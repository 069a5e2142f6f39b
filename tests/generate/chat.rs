//! Chat templates against transformers' rendering of the same sources.

use std::path::{Path, PathBuf};

use kin_infer::generate::{ChatOptions, ChatTemplate, Messages};
use serde_json::{Value, json};

use crate::json;

fn folder(name: &str, files: &[(&str, String)]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("chat-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }
    folder
}

fn template(folder: &Path) -> ChatTemplate {
    ChatTemplate::from_folder(folder).unwrap().unwrap()
}

fn user(content: &str) -> Messages {
    let mut messages = Messages::new();
    messages.push("user", content);
    messages
}

#[test]
fn conversations_are_rendered_as_by_transformers() {
    let reference = json("gen-chat.json");
    let mut failed = Vec::new();
    let (mut texts, mut errors) = (0, 0);
    for (name, source) in reference["templates"].as_object().unwrap() {
        let mut config = reference["variables"].clone();
        config["chat_template"] = source.clone();
        let template = template(&folder(name, &[("tokenizer_config.json", config.to_string())]));
        let own = |case: &&Value| case["template"] == *name;
        for case in reference["cases"].as_array().unwrap().iter().filter(own) {
            let messages = Messages::from_json(case["messages"].as_str().unwrap()).unwrap();
            let mut options = ChatOptions::new()
                .answer(case["add_generation_prompt"].as_bool().unwrap())
                .now(reference["now"].as_u64().unwrap());
            for (name, value) in case["variables"].as_object().unwrap() {
                options = options.variable(name, value.as_str().unwrap()).unwrap();
            }
            let found = template.render(&messages, &options);
            match case.get("text") {
                Some(text) => {
                    texts += 1;
                    if found.as_ref().ok().map(String::as_str) != text.as_str() {
                        failed.push(format!("{name}: {}\n  found {found:?}\nexpected {text}", case["messages"]));
                    }
                }
                None => {
                    errors += 1;
                    let error = found.expect_err(case["messages"].as_str().unwrap()).to_string();
                    let expected = case["error"].as_str().unwrap();
                    let raised = reference["templates"][name].as_str().unwrap().contains(expected);
                    if raised && !error.contains(expected) {
                        failed.push(format!("{name}: {error} instead of {expected}"));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
    assert!(texts >= 120 && errors >= 20, "{texts} texts, {errors} errors");
}

#[test]
fn templates_are_found_where_they_lie() {
    let config = |template: Value| ("tokenizer_config.json", json!({"chat_template": template}).to_string());
    let render = |folder: &Path, options: ChatOptions| template(folder).render(&user("x"), &options);
    let one = folder("one", &[config(json!("[{{ messages[0].content }}]"))]);
    assert_eq!(render(&one, ChatOptions::new()).unwrap(), "[x]");
    let list = json!([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}]);
    let named = folder("named", &[config(list)]);
    assert_eq!(template(&named).names().collect::<Vec<_>>(), ["default", "tool_use", "rag"]);
    assert_eq!(render(&named, ChatOptions::new()).unwrap(), "d");
    assert_eq!(render(&named, ChatOptions::new().template("rag")).unwrap(), "r");
    assert_eq!(render(&named, ChatOptions::new().variable("tools", "[{}]").unwrap()).unwrap(), "t");
    let missing = render(&named, ChatOptions::new().template("none")).unwrap_err().to_string();
    assert!(missing.contains("`none`") && missing.contains("default, tool_use, rag"), "{missing}");
    let nameless =
        folder("nameless", &[config(json!([{"name": "a", "template": "a"}, {"name": "b", "template": "b"}]))]);
    assert!(render(&nameless, ChatOptions::new()).unwrap_err().to_string().contains("`default`"));
    let files = [
        ("chat_template.jinja", "file".to_string()),
        ("additional_chat_templates/rag.jinja", "more".to_string()),
        config(json!("config")),
    ];
    let files = folder("files", &files);
    assert_eq!(render(&files, ChatOptions::new()).unwrap(), "file");
    assert_eq!(render(&files, ChatOptions::new().template("rag")).unwrap(), "more");
    assert!(ChatTemplate::from_folder(&folder("none", &[])).unwrap().is_none());
    for wrong in [json!(7), json!([{"name": "x"}]), json!(["x"])] {
        let error = ChatTemplate::from_folder(&folder("wrong", &[config(wrong)])).unwrap_err().to_string();
        assert!(error.contains("chat_template") && error.contains("tokenizer_config.json"), "{error}");
    }
}

#[test]
fn special_tokens_are_texts_or_objects() {
    let config = json!({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ sep_token is defined }}",
        "bos_token": {"content": "<b>"}, "eos_token": "<e>"});
    let files = [
        ("tokenizer_config.json", config.to_string()),
        ("special_tokens_map.json", json!({"pad_token": "<p>", "eos_token": "<x>"}).to_string()),
    ];
    let found = template(&folder("special", &files)).render(&user(""), &ChatOptions::new()).unwrap();
    assert_eq!(found, "<b><e><p>False");
}

#[test]
fn bad_templates_and_messages_are_errors() {
    let render = |source: &str, messages: &Messages| {
        let files = [("chat_template.jinja", source.to_string())];
        template(&folder("bad", &files)).render(messages, &ChatOptions::new())
    };
    for (source, part) in [
        ("{% if %}", "line 1"),
        ("a\n{{ nothing() }}", "line 2"),
        ("{{ messages[0].content.none() }}", "none"),
        ("{{ raise_exception('not so') }}", "not so"),
        ("{{ strftime_now('%Q') }}", "%Q"),
        ("{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}", ""),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ""),
    ] {
        let error = render(source, &user("x")).unwrap_err().to_string();
        assert!(error.contains("chat_template.jinja") && error.contains(part), "{source}: {error}");
    }
    assert!(render("x", &Messages::new()).unwrap_err().to_string().contains("without messages"));
    for wrong in ["{}", "[1]", "[\"a\"]", "[{]", "", "[[]]"] {
        assert!(Messages::from_json(wrong).is_err(), "{wrong}");
    }
    assert!(ChatOptions::new().variable("tools", "[").is_err());
    // Without a given time the clock counts.
    let year: u32 = render("{{ strftime_now('%Y') }}", &user("x")).unwrap().parse().unwrap();
    assert!(year >= 2024);
    let mut messages = user("x");
    messages.push("assistant", "y");
    messages.pop();
    assert_eq!(render("{{ messages | length }}", &messages).unwrap(), "1");
}
