//! `forward`, `inspect`, `fingerprint`, `devices`, `env` and the help.

mod common;

use common::*;
use kin_infer::ModelArchitecture;
use serde_json::{Value, json};

#[test]
fn forward_gives_the_reference() {
    for name in ["bert-base", "bert-classifier-1", "bert-classifier-3"] {
        let folder = scratch(&format!("forward-{name}"));
        let all = |part: &str| (0..).map_while(|i| ids(name, &format!("input.{i}.{part}"))).collect::<Vec<_>>();
        let (sequences, types) = (all("ids"), all("types"));
        let (tokens, out) = (folder.join("tokens.json"), folder.join("out.safetensors"));
        std::fs::write(&tokens, json!({"sequences": sequences, "type_ids": types}).to_string()).unwrap();
        let model = fixture(name).display().to_string();
        let (tokens, out_text) = (tokens.display().to_string(), out.display().to_string());
        let ran = run(&["forward", "--model", &model, "--tokens", &tokens, "--output", &out_text]).expect(0);
        assert_eq!(ran.stdout, "");
        for (i, sequence) in sequences.iter().enumerate() {
            let (shape, hidden) = tensor(&out, &format!("hidden.{i}")).unwrap();
            assert_eq!(shape[0], sequence.len());
            assert_close(&format!("{name} hidden.{i}"), hidden, &expected(name, &format!("seq.{i}.hidden")).unwrap());
            let labels = tensor(&out, &format!("labels.{i}")).map(|(_, values)| values);
            assert_eq!(labels.is_some(), name != "bert-base");
            if let Some(labels) = labels {
                let reference = expected(name, &format!("seq.{i}.labels")).unwrap();
                assert_close(&format!("{name} labels.{i}"), labels, &reference);
            }
        }
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "no partial file is left");
    }
}

/// The first fixture of each family this build knows, by name, that `fits`.
fn one_a_family(fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(fixture("")).unwrap().flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    let mut seen = std::collections::BTreeSet::new();
    let family = |name: &str| -> Option<String> {
        let text = std::fs::read_to_string(fixture(name).join("config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).unwrap();
        Some(config["model_type"].as_str()?.to_string())
    };
    let known = |family: &String| ModelArchitecture::ALL.iter().any(|(name, _)| name == family);
    names.retain(|name| fits(name) && family(name).filter(known).is_some_and(|f| seen.insert(f)));
    names
}

#[test]
fn forward_never_writes_over_its_tokens() {
    let folder = scratch("forward-clash");
    let (tokens, model) = (folder.join("ids.json"), fixture("bert-base").display().to_string());
    let text = "{\"sequences\": [[1, 2]]}";
    std::fs::write(&tokens, text).unwrap();
    let (tokens, output) = (tokens.display().to_string(), folder.join("./ids.json").display().to_string());
    let ran = run(&["forward", "--model", &model, "--tokens", &tokens, "--output", &output]).expect(2);
    assert!(ran.stderr.contains("--output is the --tokens file"), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&tokens).unwrap(), text);
}

/// Runs `forward` on a fixture's sequences that have a tensor `seq.<i>.<part>`, and gives their numbers in the fixture.
fn forward(name: &str, part: &str, more: &[&str]) -> (std::path::PathBuf, Vec<usize>) {
    let folder = scratch(&format!("forward-{name}-{part}"));
    let (tokens, out) = (folder.join("tokens.json"), folder.join("out.safetensors"));
    let some: Vec<usize> = (0..10).filter(|i| expected(name, &format!("seq.{i}.{part}")).is_some()).collect();
    let all = |part: &str| some.iter().map(|i| ids(name, &format!("input.{i}.{part}"))).collect::<Option<Vec<_>>>();
    std::fs::write(&tokens, json!({"sequences": all("ids").unwrap(), "type_ids": all("types")}).to_string()).unwrap();
    let model = fixture(name).display().to_string();
    let (tokens, output) = (tokens.display().to_string(), out.display().to_string());
    run(&[&["forward", "--model", &model, "--tokens", &tokens, "--output", &output], more].concat()).expect(0);
    (out, some)
}

#[test]
fn forward_works_for_every_family() {
    let names = one_a_family(|name| expected_file(name) && !name.starts_with("st-"));
    assert!(names.len() >= 14, "{names:?}");
    for name in names {
        let (out, some) = forward(&name, "hidden", &[]);
        assert!(!some.is_empty(), "{name}");
        for (at, i) in some.iter().enumerate() {
            let (_, hidden) = tensor(&out, &format!("hidden.{at}")).unwrap();
            assert_close(&format!("{name} hidden.{i}"), hidden, &expected(&name, &format!("seq.{i}.hidden")).unwrap());
            assert!(tensor(&out, &format!("logits.{at}")).is_none());
        }
    }
}

#[test]
fn forward_writes_a_masked_language_models_scores() {
    for name in ["distilbert-mlm", "roberta-mlm", "modernbert-mlm"] {
        let (out, some) = forward(name, "mlm", &["--head", "masked-lm"]);
        assert!(some.len() >= 2, "{name}");
        for (at, i) in some.iter().enumerate() {
            let (shape, logits) = tensor(&out, &format!("logits.{at}")).unwrap();
            assert_eq!(shape[0], tensor(&out, &format!("hidden.{at}")).unwrap().0[0]);
            assert_close(&format!("{name} logits.{i}"), logits, &expected(name, &format!("seq.{i}.mlm")).unwrap());
        }
    }
    let folder = scratch("forward-headless");
    let tokens = folder.join("tokens.json");
    std::fs::write(&tokens, "{\"sequences\": [[1]]}").unwrap();
    let (tokens, out) = (tokens.display().to_string(), folder.join("out").display().to_string());
    let model = fixture("bert-base").display().to_string();
    for (head, message) in [("masked-lm", "cls.predictions"), ("causal-lm", "ForCausalLM")] {
        let arguments = ["forward", "--model", &model, "--tokens", &tokens, "--output", &out, "--head", head];
        let ran = run(&arguments).expect(1);
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn forward_names_what_is_wrong_with_its_tokens() {
    let folder = scratch("forward-wrong");
    let (tokens, out) = (folder.join("tokens.json"), folder.join("out.safetensors"));
    let model = fixture("bert-base").display().to_string();
    let arguments = [
        "forward",
        "--model",
        &model,
        "--tokens",
        &tokens.display().to_string(),
        "--output",
        &out.display().to_string(),
    ];
    for (content, message) in [
        ("{\"sequences\": [[1, -2]]}", "line 1 column"),
        ("{\"sequences\": [[1]], \"type_ids\": []}", "1 `sequences` but 0 `type_ids`"),
        ("{\"sequences\": [[1]], \"type_ids\": [[0, 0]]}", "sequence 0: 1 token ids but 2"),
        ("{\"sequence\": [[1]]}", "unknown field `sequence`"),
    ] {
        std::fs::write(&tokens, content).unwrap();
        let ran = run(&arguments).expect(1);
        assert!(ran.stderr.contains(message), "{message}: {}", ran.stderr);
        assert!(!out.exists());
    }
    // A sequence beyond the vocabulary fails alone.
    std::fs::write(&tokens, "{\"sequences\": [[2, 5, 3], [5000], []]}").unwrap();
    let ran = run(&arguments).expect(1);
    assert!(ran.stderr.contains("sequence 1: token id 5000") && ran.stderr.contains("sequence 2:"), "{}", ran.stderr);
    assert!(tensor(&out, "hidden.0").is_some() && tensor(&out, "hidden.1").is_none());
}

#[test]
fn the_fingerprint_depends_on_the_model_alone() {
    let sets: Value = serde_json::from_str(&run(&["devices", "--json"]).expect(0).stdout).unwrap();
    let sets: Vec<String> = serde_json::from_value(sets["instruction_sets"].clone()).unwrap();
    assert!(sets.contains(&"scalar".to_string()));
    let mut all = Vec::new();
    for name in ["bert-base", "bert-classifier-1", "st-tiny"] {
        let model = fixture(name).display().to_string();
        let print = |isa: &str, threads: &str| {
            let mut command = kin_infer();
            command.args(["fingerprint", "--model", &model, "--threads", threads]).env("KIN_INFER_CPU_ISA", isa);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let first = print(&sets[0], "2");
        let (digits, named) = first.trim_end().split_once("  ").unwrap();
        assert!(digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{first}");
        assert_eq!(named, model);
        for (isa, threads) in sets.iter().flat_map(|isa| [(isa, "1"), (isa, "2")]) {
            assert_eq!(print(isa, threads), first, "{isa}, {threads} threads");
        }
        all.push(digits.to_string());
    }
    assert!(all[0] != all[1] && all[1] != all[2]);
    let mut command = kin_infer();
    command.args(["fingerprint", "--model", &fixture("bert-base").display().to_string()]);
    let output = command.env("KIN_INFER_CPU_ISA", "mmx").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`mmx` is not available"));
}

/// `--precision int8`: other vectors, near the exact ones, the same on every instruction set; every command that encodes
/// takes it.
#[test]
fn int8_is_taken_by_what_encodes() {
    let model = fixture("st-tiny").display().to_string();
    let vector = |more: &[&str]| {
        let arguments = [&["embed", "--model", &model, "some words to embed"], more].concat();
        floats(&run(&arguments).expect(0).json()[0]["embedding"])
    };
    let (exact, int8) = (vector(&[]), vector(&["--precision", "int8"]));
    assert_eq!(vector(&["--precision", "exact"]), exact);
    assert_ne!(exact, int8);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(dot(&exact, &int8) > 0.99 * (dot(&exact, &exact) * dot(&int8, &int8)).sqrt());

    let folder = scratch("int8");
    let (stored, cross) = (folder.join("stored.jsonl").display().to_string(), folder.join("cross"));
    let texts =
        ["embed", "--model", &model, "--precision", "int8", "--output", &stored, "some words to embed", "other"];
    run(&texts).expect(0);
    let search = ["search", "--model", &model, "--embeddings", &stored, "--format", "json", "some words to embed"];
    let score = |more: &[&str]| run(&[&search, more].concat()).expect(0).json()[0]["score"].as_f64().unwrap();
    assert_ne!(score(&["--precision", "int8"]), score(&[]), "the query's vector is another");

    classifier(1, &cross);
    let cross = cross.display().to_string();
    let rerank = ["rerank", "--model", &cross, "--query", "some", "--format", "json", "words"];
    let [exact, int8] = [&[][..], &["--precision", "int8"]].map(|more| run(&[&rerank, more].concat()).expect(0).stdout);
    assert_ne!(exact, int8);

    let print = |isa: &str, dot: &str| {
        let mut command = kin_infer();
        command.args(["fingerprint", "--model", &model, "--precision", "int8"]);
        let output = command.env("KIN_INFER_CPU_ISA", isa).env("KIN_INFER_CPU_DOT", dot).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let first = print("scalar", "");
    assert_ne!(first, run(&["fingerprint", "--model", &model]).expect(0).stdout);
    let sets: Value = serde_json::from_str(&run(&["devices", "--json"]).expect(0).stdout).unwrap();
    for isa in sets["instruction_sets"].as_array().unwrap() {
        for dot in ["", "no-amx", "off"] {
            assert_eq!(print(isa.as_str().unwrap(), dot), first, "{isa} {dot}");
        }
    }
    run(&["embed", "--model", &model, "--precision", "int4", "x"]).expect(2);
}

#[test]
fn inspect_tells_what_is_there() {
    let inspect = |name: &str, more: &[&str]| {
        let model = fixture(name).display().to_string();
        run(&[&["inspect", &model][..], more].concat()).expect(0)
    };
    let json = |name: &str, more: &[&str]| inspect(name, &[more, &["--json"]].concat()).json().swap_remove(0);
    let tiny = json("st-tiny", &[]);
    assert_eq!(tiny["window"], json!({"tokens": 24, "source": "`max_seq_length` of sentence_bert_config.json"}));
    assert_eq!(tiny["modules"].as_array().unwrap().len(), 4);
    assert_eq!(tiny["assumptions"], json!([]));
    let base = json("bert-base", &["--tensors"]);
    assert_eq!((&base["model_type"], &base["window"]["tokens"]), (&json!("bert"), &json!(40)));
    assert_eq!(base["spec"]["layers"], "2 of 32 features");
    assert!(base["assumptions"].to_string().contains("no tokenizer"));
    let used = base["tensors_used"].as_array().unwrap();
    assert!(used.iter().any(|n| n.as_str().unwrap().ends_with("word_embeddings.weight")), "{used:?}");
    assert_eq!(json("bert-base", &[])["tensors_used"], used.len());
    assert!(base["parameter_bytes"].as_u64().unwrap() > 0 && base["weight_bytes"].as_u64().unwrap() > 0);
    assert_eq!(json("bert-classifier-3", &[])["modules"], json!([]));
    for line in inspect("st-tiny", &["--tensors"]).stdout.lines() {
        assert_eq!(line.split('\t').count(), 2, "{line}");
    }
    run(&["inspect", &fixture("tokenizer").display().to_string()]).expect(1);
}

#[test]
fn devices_and_environment_are_listed() {
    let text = run(&["devices"]).expect(0);
    assert!(text.stderr.is_empty() && text.stdout.lines().all(|l| l.split('\t').count() == 2), "{}", text.stdout);
    let devices = run(&["devices", "--json"]).expect(0).json().swap_remove(0);
    assert_eq!(devices["devices"].as_array().unwrap().last().unwrap()["backend"], "cpu");
    assert!(devices["physical_cores"].as_u64().unwrap() >= 1);
    let output = kin_infer().args(["env", "--json"]).env("KIN_INFER_CPU_ISA", "scalar").output().unwrap();
    let lines: Vec<Value> =
        output.stdout.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect();
    let by_name = |name: &str| lines.iter().find(|l| l["name"] == name).unwrap();
    assert_eq!(by_name("KIN_INFER_CPU_ISA")["value"], "scalar");
    assert_eq!(by_name("KIN_INFER_FORCE_CPU")["value"], Value::Null);
    let text = run(&["env"]).expect(0).stdout;
    assert!(lines.iter().all(|l| text.contains(l["purpose"].as_str().unwrap())));
}

/// A GPU backend of this build has devices or says why not, and is told about where `auto` passes it over; one that is
/// asked for by name is never replaced by the CPU.
#[test]
fn gpu_backends_compute_or_say_why_not() {
    let listed = run(&["devices", "--json"]).expect(0).json().swap_remove(0);
    let of = |list: &str, backend: &str| listed[list].as_array().unwrap().iter().any(|d| d["backend"] == backend);
    let model = fixture("bert-base").display().to_string();
    let fingerprint = |more: &[&str]| run(&[&["fingerprint", "--model", &model][..], more].concat());
    let cpu = fingerprint(&["--device", "cpu"]).expect(0);
    assert!(cpu.stderr.is_empty(), "{}", cpu.stderr);
    let auto = fingerprint(&[]).expect(0);
    assert_eq!(auto.stdout, cpu.stdout);
    assert!(fingerprint(&["--quiet"]).expect(0).stderr.is_empty());
    for (backend, built) in [("cuda", cfg!(feature = "cuda")), ("metal", cfg!(feature = "metal"))] {
        let (there, absent) = (of("devices", backend), of("absent", backend));
        assert!(built || !(there || absent), "{backend}: {listed}");
        assert_eq!(auto.stderr.contains(&format!("note: {backend} is not used (")), absent, "{}", auto.stderr);
        if there {
            assert_eq!(fingerprint(&["--device", backend]).expect(0).stdout, cpu.stdout);
        } else {
            let refused = fingerprint(&["--device", backend]).expect(1);
            assert!(refused.stdout.is_empty());
            assert!(refused.stderr.contains(&format!("--device {backend}: ")), "{}", refused.stderr);
        }
    }
    let forced = kin_infer().args(["fingerprint", "--model", &model]).env("KIN_INFER_FORCE_CPU", "1").output().unwrap();
    assert!(forced.status.success() && forced.stderr.is_empty());
    let pinned = kin_infer().args(["devices", "--json"]).env("KIN_INFER_CPU_BACKEND", "pure-rust").output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&pinned.stdout).unwrap()["products"], "pure-rust");
    let unknown =
        kin_infer().args(["fingerprint", "--model", &model]).env("KIN_INFER_CPU_BACKEND", "mkl").output().unwrap();
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("`mkl`, this build has pure-rust"));
}

/// One fixture of each family, and every sentence-transformers folder: all aspects of it are told.
#[test]
fn inspect_describes_every_family() {
    let refused = ["deberta-talking", "gte-logn", "gte-logn-clip"];
    let mut names = one_a_family(|name| expected_file(name) && !refused.contains(&name));
    names.extend(["st-splade", "st-splade-top", "st-colbert", "st-pylate", "distilbert-mlm"].map(str::to_string));
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        let ran = run(&["inspect", &fixture(&name).display().to_string()]).expect(0);
        let told: Vec<(&str, &str)> = ran.stdout.lines().map(|l| l.split_once('\t').unwrap()).collect();
        for aspect in [
            "model_type",
            "layers",
            "embedding",
            "positions",
            "norm",
            "attention",
            "feed-forward",
            "head",
            "longest sequence",
            "window",
            "output",
            "tensors used",
            "tensors ignored",
            "checkpoint",
            "memory",
        ] {
            assert!(
                told.iter().any(|(n, words)| *n == aspect && !words.is_empty()),
                "{name}: {aspect}\n{}",
                ran.stdout
            );
        }
    }
    let words = |name: &str, more: &[&str]| {
        let model = fixture(name).display().to_string();
        run(&[&["inspect", &model], more].concat()).expect(0).stdout
    };
    let splade = words("st-splade", &[]);
    assert!(splade.contains("module\tSPLADE: sum over the tokens of log(1 + log(1 + relu(score)))"), "{splade}");
    assert!(splade.contains("output\ta sparse vector of 160 entries a text"), "{splade}");
    let colbert = words("st-colbert", &[]);
    for line in [
        "module\ttoken filter: 4 tokens left out of documents",
        "late interaction\tqueries filled up to 14 tokens",
        "late interaction\tdocuments of at most 30 tokens",
        "prompt\tquery: \"query: \"",
        "output\ta vector of 12 values a token",
    ] {
        assert!(colbert.contains(line), "{line}: {colbert}");
    }
    assert!(words("distilbert-mlm", &[]).contains("head\tnone"));
    assert!(words("distilbert-mlm", &["--head", "masked-lm"]).contains("head\tmasked language model"));
}

/// Every option says what it does, and every command shows how it is used.
#[test]
fn help_teaches() {
    let top = run(&["--help"]).expect(0).stdout;
    let listed = top.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<&str> = listed.lines().filter_map(|l| l.strip_prefix("  ")?.split(' ').next()).collect();
    let commands: Vec<&str> = commands.into_iter().filter(|c| !c.is_empty() && *c != "help").collect();
    assert!(commands.len() >= 12, "{commands:?}");
    for command in commands {
        let help = run(&[command, "--help"]).expect(0);
        assert!(help.stderr.is_empty() && help.stdout.contains("Example"), "{command}");
        let lines: Vec<&str> = help.stdout.lines().collect();
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut options = 0;
        let is_option = |line: &str| line.starts_with(' ') && line.trim_start().starts_with('-');
        // A value that an option takes begins with a dash and a space.
        let is_value = |line: &str| line.trim_start().starts_with("- ");
        for (i, line) in lines.iter().enumerate().filter(|(_, l)| is_option(l) && !is_value(l)) {
            // Beside it, or below it and further in; what values it takes is not what it does.
            let beside = line.trim_start().split_once("  ").map(|(_, words)| words.trim_start());
            let below = lines.get(i + 1).filter(|next| indent(next) > indent(line)).map(|next| next.trim_start());
            let told = beside.or(below).unwrap_or_default();
            assert!(told.starts_with(char::is_alphabetic), "{command}: {line}: {told}");
            options += 1;
        }
        assert!(options >= 2, "{command}: {options} options");
    }
}

/// `--quiet` leaves errors, and takes away what is told without it.
#[test]
fn quiet_leaves_errors() {
    let model = fixture("st-tiny").display().to_string();
    let long = "the parser ".repeat(40);
    let input = [long.as_bytes(), b"\nna\xefve\n"].concat();
    let stderr = |more: &[&str]| {
        let ran = run_with_input(&[&["embed", "--model", &model][..], more].concat(), &input).expect(1);
        assert_eq!(ran.json().len(), 1);
        ran.stderr
    };
    let (told, quiet) = (stderr(&[]), stderr(&["--quiet"]));
    assert!(told.contains("note: texts longer than 24 tokens") && told.contains("embedded 1 texts"), "{told}");
    assert_eq!(quiet, "error: stdin: line 2: not UTF-8 at byte 2 of the line\n");
}

/// The process has the threads that were asked for, and its first one; on any machine, more or fewer than it has cores.
#[cfg(target_os = "linux")]
#[test]
fn threads_are_those_asked_for() {
    for threads in [1, 3, 5] {
        let mut command = kin_infer();
        command.args([
            "embed",
            "--model",
            &fixture("st-tiny").display().to_string(),
            "--threads",
            &threads.to_string(),
        ]);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), "text\n".repeat(64).as_bytes()).unwrap();
        // Once it has written, its pool stands; it then waits for more.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 10]).unwrap();
        let found = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, threads + 1);
    }
}
