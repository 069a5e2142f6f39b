//! `generate`: ids, texts and conversations, what is printed, and how it ends.

mod common;

use common::*;
use serde_json::{Value, json};

fn model(name: &str) -> String {
    fixture(name).display().to_string()
}

fn cases(name: &str, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[kind].as_array().unwrap().clone()
}

/// Runs `generate` with `--quiet`.
fn generate(name: &str, more: &[&str]) -> Ran {
    run(&[&["generate", "--quiet", "--model", &model(name)], more].concat())
}

/// The `sequences` of a JSON line.
fn sequences(ran: &Ran) -> Vec<Value> {
    let lines = ran.json();
    assert_eq!(lines.len(), 1, "{}", ran.stdout);
    lines[0]["sequences"].as_array().unwrap().clone()
}

/// A file of token ids in a fresh folder.
fn tokens(name: &str, sequences: &Value) -> String {
    let file = scratch(&format!("generate-{name}")).join("tokens.json");
    std::fs::write(&file, json!({"sequences": sequences}).to_string()).unwrap();
    file.display().to_string()
}

#[test]
fn ids_are_continued_greedily_as_by_the_reference() {
    for name in ["llama-gqa", "gpt2-base", "qwen3-base"] {
        let all = |part: &str| (0..).map_while(|i| ids(name, &format!("greedy.{i}.{part}"))).collect::<Vec<_>>();
        let (prompts, expected) = (all("prompt"), all("tokens"));
        let file = tokens(name, &json!(prompts));
        let options = ["--tokens", &file, "--format", "json", "--max-new-tokens", "12", "--ignore-eos"];
        for batch in ["1", "8"] {
            let ran = generate(name, &[&options[..], &["--batch-size", batch]].concat()).expect(0);
            assert_eq!(ran.stderr, "");
            let found = sequences(&ran);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(*found, json!({"tokens": expected, "text": null, "finish_reason": "length"}), "{name}");
            }
        }
        // Without a tokenizer the text is the ids.
        let ran = generate(name, &["--tokens", &file, "--max-new-tokens", "12", "--ignore-eos"]).expect(0);
        let lines: Vec<Vec<i64>> =
            ran.stdout.lines().map(|l| l.split(' ').map(|id| id.parse().unwrap()).collect()).collect();
        assert_eq!(lines, expected, "{name}");
    }
}

#[test]
fn texts_are_continued() {
    for name in ["gen-llama", "gen-bytes"] {
        let cases = cases(name, "texts");
        let mut options = Vec::new();
        for case in &cases {
            let prompt = case["prompt"].as_str().unwrap();
            let ran = generate(name, &["--prompt", prompt]).expect(0);
            assert_eq!(ran.stdout, format!("{}\n", case["text"].as_str().unwrap()), "{name}: {prompt:?}");
            options.extend(["--prompt", prompt]);
        }
        let all = generate(name, &options).expect(0);
        let texts: String = cases.iter().map(|c| format!("{}\n", c["text"].as_str().unwrap())).collect();
        assert_eq!(all.stdout, texts, "{name}");
        options.extend(["--format", "json", "--batch-size", "3"]);
        for (found, case) in sequences(&generate(name, &options).expect(0)).iter().zip(&cases) {
            assert_eq!((&found["tokens"], &found["text"]), (&case["tokens"], &case["text"]), "{name}");
            let stopped = case["tokens"].as_array().unwrap().len() < 24;
            assert_eq!(found["finish_reason"], if stopped { "stop_token" } else { "length" }, "{name}");
        }
        // The same ids from a file, with a tokenizer beside them.
        let prompts: Vec<&Value> = cases.iter().map(|c| &c["ids"]).collect();
        let file = tokens(name, &json!(prompts));
        let found = sequences(&generate(name, &["--tokens", &file, "--format", "json"]).expect(0));
        for (found, case) in found.iter().zip(&cases) {
            assert_eq!((&found["tokens"], &found["text"]), (&case["tokens"], &case["text"]), "{name}");
        }
    }
}

#[test]
fn a_seed_gives_the_same_text() {
    let text = |seed: &str, threads: &str| {
        let options =
            ["--prompt", "fn main", "--temperature", "1.3", "--top-k", "50", "--top-p", "0.95", "--min-p", "0.001"];
        let more = ["--repetition-penalty", "1.1", "--seed", seed, "--threads", threads, "--ignore-eos"];
        generate("gen-bytes", &[&options[..], &more].concat()).expect(0).stdout
    };
    assert_eq!(text("1", "1"), text("1", "2"));
    assert_ne!(text("1", "1"), text("2", "1"));
    // A sequence's numbers do not depend on its place.
    let options = ["--temperature", "1.3", "--seed", "5", "--format", "json"];
    let both = generate("gen-bytes", &[&["--prompt", "x", "--prompt", "fn main"], &options[..]].concat()).expect(0);
    let alone = generate("gen-bytes", &[&["--prompt", "fn main"], &options[..]].concat()).expect(0);
    assert_eq!(sequences(&both)[1], sequences(&alone)[0]);
}

#[test]
fn stops_and_log_probabilities() {
    let case = &cases("gen-bytes", "texts")[0];
    let text = case["text"].as_str().unwrap();
    let stop: String = text.chars().skip(6).take(3).collect();
    let prompt = ["--prompt", case["prompt"].as_str().unwrap()];
    let ran = generate("gen-bytes", &[&prompt[..], &["--stop", &stop, "--stop", "never here"]].concat()).expect(0);
    assert_eq!(ran.stdout, format!("{}\n", &text[..text.find(&stop).unwrap()]));
    let found = sequences(&generate("gen-bytes", &[&prompt[..], &["--stop", &stop, "--format", "json"]].concat()));
    assert_eq!(found[0]["finish_reason"], "stop_text");
    let options = ["--logprobs", "3", "--format", "json", "--max-new-tokens", "5"];
    let found = sequences(&generate("gen-bytes", &[&prompt[..], &options].concat()).expect(0));
    let logprobs = found[0]["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 5);
    for (entry, token) in logprobs.iter().zip(found[0]["tokens"].as_array().unwrap()) {
        assert_eq!((&entry["token"], entry["top"].as_array().unwrap().len()), (token, 3));
        assert_eq!(entry["top"][0], json!([token, entry["logprob"]]), "greedy takes the likeliest");
    }
    assert!(found[0].get("logprobs").is_some() && sequences(&ran_json(&prompt))[0].get("logprobs").is_none());
    // A window full of tokens, and none.
    let whole = generate(
        "gen-bytes",
        &[&prompt[..], &["--ignore-eos", "--max-new-tokens", "9999", "--format", "json"]].concat(),
    );
    let found = &sequences(&whole.expect(0))[0];
    assert_eq!(found["finish_reason"], "window");
    assert_eq!(found["tokens"].as_array().unwrap().len() + case["ids"].as_array().unwrap().len(), 128);
    let none = generate("gen-bytes", &[&prompt[..], &["--max-new-tokens", "0"]].concat()).expect(0);
    assert_eq!(none.stdout, "\n");
}

fn ran_json(prompt: &[&str]) -> Ran {
    generate("gen-bytes", &[prompt, &["--format", "json"]].concat()).expect(0)
}

#[test]
fn conversations_are_answered() {
    for name in ["gen-llama", "gen-bytes"] {
        let cases = cases(name, "chats");
        for case in &cases {
            let file = scratch(&format!("generate-messages-{name}")).join("messages.json");
            std::fs::write(&file, case["messages"].as_str().unwrap()).unwrap();
            let options = ["--messages", &file.display().to_string()];
            let ran = generate(name, &options).expect(0);
            assert_eq!(ran.stdout, format!("{}\n", case["text"].as_str().unwrap()));
            let found = sequences(&generate(name, &[&options[..], &["--chat", "--format", "json"]].concat()).expect(0));
            assert_eq!(found[0]["tokens"], case["tokens"]);
        }
        // Lines of stdin: the first answer is that of the one message, the second that of all three.
        let said = "Where does it start?";
        let options = ["generate", "--model", &model(name), "--chat", "--max-new-tokens", "7", "--ignore-eos"];
        let ran = run_with_input(&options, format!("{said}\n\r\n  \nrows\r\n").as_bytes()).expect(0);
        let summaries: Vec<&str> = ran.stderr.lines().collect();
        assert!(summaries.len() == 2 && summaries.iter().all(|l| l.contains("new: 7 tokens")), "{}", ran.stderr);
        assert!(summaries[1].contains("more were known"), "{}", ran.stderr);
        let json = [&options[..], &["--format", "json", "--quiet"]].concat();
        let answers = run_with_input(&json, format!("{said}\nrows\n").as_bytes()).expect(0);
        assert_eq!(answers.stderr, "");
        let texts: Vec<String> =
            answers.json().iter().map(|line| line["sequences"][0]["text"].as_str().unwrap().to_string()).collect();
        assert_eq!(ran.stdout, format!("{}\n{}\n", texts[0], texts[1]));
        // A message that the window has no room for costs itself alone.
        let input = format!("{said}\n{}\nrows\n", "words ".repeat(900));
        let less = run_with_input(&options, input.as_bytes()).expect(1);
        assert_eq!(less.stdout, ran.stdout);
        assert!(less.stderr.contains("error: message 2: ") && less.stderr.contains("window"), "{}", less.stderr);
        let file = scratch(&format!("generate-turns-{name}")).join("messages.json");
        let turns = [("user", said), ("assistant", &texts[0]), ("user", "rows")];
        let turns: Vec<Value> = turns.iter().map(|(r, c)| json!({"role": r, "content": c})).collect();
        std::fs::write(&file, json!(turns).to_string()).unwrap();
        let file = file.display().to_string();
        let once = generate(name, &["--messages", &file, "--max-new-tokens", "7", "--ignore-eos"]).expect(0);
        assert_eq!(once.stdout, format!("{}\n", texts[1]));
    }
}

#[test]
fn what_is_wrong_is_told() {
    let usage: [(&[&str], &str); 11] = [
        (&[], "required"),
        (&["--prompt", "x", "--chat"], "cannot be used with"),
        (&["--prompt", "x", "--tokens", "f"], "cannot be used with"),
        (&["--tokens", "f", "--messages", "g"], "cannot be used with"),
        (&["--prompt", "x", "--logprobs", "2"], "--logprobs needs --format json"),
        (&["--prompt", "x", "--top-p", "0.5"], "--temperature"),
        (&["--prompt", "x", "--temperature=-1"], "`temperature` is -1"),
        (&["--prompt", "x", "--temperature", "nan"], "`temperature` is NaN"),
        (&["--prompt", "x", "--temperature", "1", "--top-p", "1.5"], "`top_p` is 1.5"),
        (&["--prompt", "x", "--repetition-penalty", "0"], "`repetition_penalty` is 0"),
        (&["--prompt", "x", "--batch-size", "0"], "batch-size"),
    ];
    for (options, message) in usage {
        let ran = generate("gen-bytes", options).expect(2);
        assert!(ran.stderr.contains(message) && ran.stdout.is_empty(), "{options:?}: {}", ran.stderr);
    }
    for (name, options, message) in [
        ("llama-gqa", ["--prompt", "x"], "tokenizer"),
        ("bert-base", ["--prompt", "x"], "tokenizer"),
        ("gen-llama", ["--tokens", "/nowhere.json"], "/nowhere.json"),
        ("gen-llama", ["--messages", "/nowhere.json"], "/nowhere.json"),
    ] {
        let ran = generate(name, &options).expect(1);
        assert!(ran.stderr.contains(message), "{name}: {}", ran.stderr);
    }
    for (content, message) in [("{\"sequences\": [[1, -2]]}", "line 1 column"), ("{\"ids\": []}", "unknown field")] {
        let file = scratch("generate-wrong").join("tokens.json");
        std::fs::write(&file, content).unwrap();
        let ran = generate("llama-gqa", &["--tokens", &file.display().to_string()]).expect(1);
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
    // A sequence that cannot be continued leaves the others alone.
    let file = tokens("alone", &json!([[1, 2], [5000], [], [3]]));
    let options = ["--tokens", &file, "--format", "json", "--max-new-tokens", "3"];
    let ran = generate("llama-gqa", &options).expect(1);
    let found = sequences(&ran);
    assert!(found[1]["error"].as_str().unwrap().contains("token id 5000"), "{}", ran.stdout);
    assert!(ran.stderr.contains("sequence 1: token id 5000") && ran.stderr.contains("sequence 2:"), "{}", ran.stderr);
    assert!(found[0]["tokens"].is_array() && found[3]["tokens"].is_array() && found[2]["error"].is_string());
    let ran = generate("llama-gqa", &["--tokens", &tokens("bad", &json!([[1]])), "--stop", "x"]).expect(1);
    assert!(ran.stderr.contains("stop texts need text"), "{}", ran.stderr);
}

#[test]
fn help_teaches() {
    let help = run(&["generate", "--help"]).expect(0).stdout;
    for word in
        ["--prompt", "--tokens", "--chat", "--messages", "--seed", "--stop", "--ignore-eos", "Ctrl-C", "Examples:"]
    {
        assert!(help.contains(word), "{word}");
    }
    assert!(run(&["--help"]).expect(0).stdout.contains("\n  generate "));
}

#[cfg(unix)]
mod interrupt {
    use std::io::Read;
    use std::process::{Child, Command, Output, Stdio};
    use std::time::Duration;

    use super::*;

    /// gen-bytes with a window that no test fills, and a process that generates from it.
    fn endless(name: &str, more: &[&str]) -> Child {
        let folder = scratch(name);
        copy_folder(&fixture("gen-bytes"), &folder);
        let mut config: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        config["max_position_embeddings"] = json!(100_000_000);
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let mut command = kin_infer();
        let options = ["--max-new-tokens", "90000000", "--ignore-eos"];
        command.arg("generate").arg("--model").arg(&folder).args(options).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn press(child: &Child) {
        let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn ctrl_c_keeps_what_was_made() {
        let mut child = endless("generate-interrupt", &["--prompt", "fn main"]);
        let mut first = [0; 20];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        press(&child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8([&first[..], &output.stdout].concat()).expect("whole characters");
        assert!(text.ends_with('\n'));
        assert!(String::from_utf8_lossy(&output.stderr).contains("new: "));
    }

    /// Presses Ctrl-C after a while: longer ones until the process has come so far that it ends with `code`.
    fn press_later(start: impl Fn() -> Child, code: i32) -> Output {
        for seconds in [2, 8, 30] {
            let child = start();
            std::thread::sleep(Duration::from_secs(seconds));
            press(&child);
            let output = child.wait_with_output().unwrap();
            if output.status.code() == Some(code) {
                return output;
            }
        }
        panic!("never ended with {code}");
    }

    #[test]
    fn ctrl_c_gives_json_its_end() {
        let options = ["--prompt", "a", "--prompt", "b", "--format", "json"];
        let output = press_later(|| endless("generate-interrupt-json", &options), 0);
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        for sequence in line["sequences"].as_array().unwrap() {
            assert_eq!(sequence["finish_reason"], "cancelled");
            assert!(!sequence["tokens"].as_array().unwrap().is_empty());
        }
    }

    #[test]
    fn ctrl_c_at_the_prompt_of_a_chat_ends_the_program() {
        let start = || {
            let mut command = kin_infer();
            command.arg("generate").arg("--model").arg(fixture("gen-bytes")).arg("--chat").stdin(Stdio::piped());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        // The pipe of stdin stays open: waiting for the child would close it.
        for seconds in [2, 8, 30] {
            let mut child = start();
            std::thread::sleep(Duration::from_secs(seconds));
            press(&child);
            if child.wait().unwrap().code() == Some(130) {
                return;
            }
        }
        panic!("never ended with 130");
    }
}
