//! The loop over token ids: against the fixtures' continuations, alone and in batches, and where it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kin_infer::cpu::{CpuCompute, available};
use kin_infer::generate::{Decoding, FinishReason, Generation, SamplingParams};
use kin_infer::{BertConfig, BertModel, InferError};

use crate::common::{Reference, decoders, fixture};
use crate::load;

fn prompt(len: usize, vocab: usize) -> Vec<u32> {
    (0..len).map(|i| ((i * 37 + len * 11 + i * i) % vocab) as u32).collect()
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams::new().temperature(0.9).top_k(30).top_p(0.95).min_p(0.01).repetition_penalty(1.2).seed(seed)
}

#[test]
fn greedy_generation_gives_the_references_tokens() {
    let mut compared = 0;
    for name in decoders() {
        let reference = Reference::open(&name);
        if reference.ids("greedy.0.prompt").is_none() {
            continue;
        }
        let model = load(&name);
        let window = model.spec().trained_tokens;
        let (mut prompts, mut expected) = (Vec::new(), Vec::new());
        for i in 0.. {
            let Some(prompt) = reference.ids(&format!("greedy.{i}.prompt")) else { break };
            // Where a growing length changes the rotation, the reference that keeps nothing is the one to agree with.
            let anew = reference.ids(&format!("greedy.{i}.recomputed_tokens"));
            let mut tokens = anew.or(reference.ids(&format!("greedy.{i}.tokens"))).unwrap();
            tokens.truncate(window - prompt.len());
            prompts.push(prompt);
            expected.push(tokens);
        }
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let found = model.generate(prompt, expected.len(), &mut SamplingParams::new()).unwrap();
            assert_eq!((&found.tokens, found.finish), (expected, FinishReason::Length), "{name}");
            compared += 1;
        }
        let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let mut params = vec![SamplingParams::new(); prompts.len()];
        let longest = expected.iter().map(Vec::len).max().unwrap();
        for (found, expected) in model.generate_all(&slices, longest, &mut params).into_iter().zip(&expected) {
            assert_eq!(found.unwrap().tokens[..expected.len()], *expected, "{name}: in a batch");
        }
    }
    assert!(compared >= 100, "only {compared} continuations");
}

/// A seed gives the same tokens on every instruction set, with one thread and two, alone, in a batch and as a stream.
#[test]
fn a_seed_gives_the_same_tokens_everywhere() {
    for name in ["llama-gqa", "gemma2-base", "qwen2-window", "gpt2-base"] {
        let folder = fixture(name);
        let mut all: Vec<(String, Vec<Vec<u32>>)> = Vec::new();
        for kernels in available() {
            let config = BertConfig::from_folder(&folder).unwrap();
            let compute = Arc::new(CpuCompute::with_kernels(kernels));
            let model = BertModel::load_with_compute(&folder, config, compute).unwrap();
            let prompts: Vec<Vec<u32>> = [1, 5, 17, 2].map(|n| prompt(n, model.spec().embedding.vocab_size)).to_vec();
            let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
            for threads in [1, 2] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let what = |how| format!("{name}, {}, {threads} threads, {how}", kernels.name());
                let alone = pool.install(|| {
                    let one = |(i, p): (usize, &&[u32])| model.generate(p, 20, &mut sampled(i as u64)).unwrap().tokens;
                    slices.iter().enumerate().map(one).collect()
                });
                all.push((what("alone"), alone));
                let mut params: Vec<_> = (0..4).map(sampled).collect();
                let batch = pool.install(|| model.generate_all(&slices, 20, &mut params));
                all.push((what("in a batch"), batch.into_iter().map(|g| g.unwrap().tokens).collect()));
                let streamed = slices.iter().enumerate().map(|(i, p)| {
                    let mut params = sampled(i as u64);
                    model.stream(p, 20, &mut params).unwrap().map(|t| t.unwrap().id).collect()
                });
                all.push((what("as a stream"), streamed.collect()));
            }
        }
        assert!(all[0].1.iter().any(|tokens| *tokens != all[0].1[0]));
        for (what, tokens) in &all {
            assert_eq!(*tokens, all[0].1, "{what}");
        }
    }
}

/// The tokens of a seed, committed: they tie the architectures of CPUs to one another.
#[test]
fn a_seed_gives_the_committed_tokens() {
    let model = load("llama-gqa");
    let found = model.generate(&[3, 14, 15], 16, &mut sampled(42)).unwrap().tokens;
    assert_eq!(found, COMMITTED);
}

const COMMITTED: [u32; 16] = [57, 23, 57, 51, 54, 32, 12, 28, 8, 56, 43, 51, 51, 1, 13, 48];

#[test]
fn parameters_go_on_where_they_ended() {
    let model = load("llama-mha");
    let mut params = sampled(8);
    let first = model.generate(&[1, 2, 3], 12, &mut params).unwrap().tokens;
    let mut again = params.clone();
    let second = model.generate(&[1, 2, 3], 12, &mut params).unwrap().tokens;
    assert_ne!(first, second);
    assert_eq!(model.generate(&[1, 2, 3], 12, &mut again).unwrap().tokens, second);
    assert_eq!(model.generate(&[1, 2, 3], 12, &mut params.seed(8)).unwrap().tokens, first);
    // Greedy generation takes no random numbers.
    let mut greedy = sampled(8).temperature(0.0);
    model.generate(&[1, 2, 3], 12, &mut greedy).unwrap();
    assert_eq!(model.generate(&[1, 2, 3], 12, &mut greedy.temperature(0.9)).unwrap().tokens, first);
}

#[test]
fn stop_ids_end_a_sequence_and_are_its_last_token() {
    let model = load("llama-gqa");
    let whole = model.generate(&[5, 6], 16, &mut SamplingParams::new()).unwrap();
    let at = whole.tokens.iter().position(|t| *t != whole.tokens[0]).unwrap();
    let stop = whole.tokens[at];
    let found = model.generate(&[5, 6], 16, &mut SamplingParams::new().stop_ids([66, stop])).unwrap();
    assert_eq!((found.tokens.as_slice(), found.finish), (&whole.tokens[..=at], FinishReason::StopToken(stop)));
    // In a batch the others go on; a stop id in the prompt stops nothing.
    let mut params = [SamplingParams::new().stop_ids([stop]), SamplingParams::new().stop_ids([5])];
    let both = model.generate_all(&[&[5, 6], &[5, 6]], 16, &mut params);
    assert_eq!(both[0].as_ref().unwrap().tokens, whole.tokens[..=at]);
    assert_eq!(*both[1].as_ref().unwrap(), whole);
    let error = model.generate(&[5], 4, &mut SamplingParams::new().stop_texts(["x"])).unwrap_err();
    assert!(error.to_string().contains("stop texts"), "{error}");
}

#[test]
fn the_window_is_a_border() {
    for name in ["llama-gqa", "gpt2-base"] {
        let model = load(name);
        let (window, vocab) = (model.spec().trained_tokens, model.spec().embedding.vocab_size);
        let run = |len: usize, max: usize| model.generate(&prompt(len, vocab), max, &mut SamplingParams::new());
        for (len, max, tokens, finish) in [
            (window - 3, 2, 2, FinishReason::Length),
            (window - 3, 3, 3, FinishReason::Length),
            (window - 3, 4, 3, FinishReason::Window),
            (window - 1, usize::MAX, 1, FinishReason::Window),
            (window, 5, 0, FinishReason::Window),
            (window, 0, 0, FinishReason::Length),
            (4, 0, 0, FinishReason::Length),
        ] {
            let found = run(len, max).unwrap();
            assert_eq!((found.tokens.len(), found.finish), (tokens, finish), "{name}: {len} tokens and {max} more");
        }
        let long = run(window + 1, 1).unwrap_err();
        assert!(matches!(long, InferError::InputError { item: 0, .. }), "{long}");
        assert!(long.to_string().contains(&format!("window is {window}")), "{long}");
        let empty = run(0, 1).unwrap_err();
        assert!(empty.to_string().contains("no tokens"), "{empty}");
    }
}

/// Prompts that are computed by parts, also where the parts' lengths ask for other rotations.
#[test]
fn long_prompts_are_continued_as_in_one_piece() {
    for (name, positions) in [("llama-dynamic", 700), ("llama-gqa", 1400), ("mistral-window", 1400)] {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("long-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(fixture(name).join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        let mut config = crate::json(&format!("{name}/config.json"));
        config["max_position_embeddings"] = positions.into();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let model = BertModel::load(&folder, BertConfig::from_folder(&folder).unwrap()).unwrap();
        let vocab = model.spec().embedding.vocab_size;
        assert_eq!(model.spec().trained_tokens, 1400, "{name}");
        let prompts = [1390, 3, 513, 1025, 600].map(|len| prompt(len, vocab));
        let slices: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let batch = model.generate_all(&slices, 6, &mut vec![SamplingParams::new(); prompts.len()]);
        for (prompt, found) in prompts.iter().zip(batch) {
            let mut ids = prompt.clone();
            for token in found.unwrap().tokens {
                let scores = model.prefill(&mut model.kv_cache().unwrap(), &ids).unwrap();
                assert_eq!(SamplingParams::new().choose(&scores, &[]).unwrap(), token, "{name}: {}", ids.len());
                ids.push(token);
            }
            assert_eq!(ids.len(), prompt.len() + 6);
        }
    }
}

#[test]
fn a_prompt_that_cannot_be_continued_leaves_the_others_alone() {
    let model = load("qwen3-base");
    let prompts: [&[u32]; 4] = [&[1, 2], &[], &[1, 999], &[4]];
    let found = model.generate_all(&prompts, 5, &mut vec![SamplingParams::new(); 4]);
    for (i, part) in [(1, "input 1: the prompt has no tokens"), (2, "input 2: token id 999 at 1")] {
        let error = found[i].as_ref().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    for i in [0, 3] {
        let alone = model.generate(prompts[i], 5, &mut SamplingParams::new()).unwrap();
        assert_eq!(*found[i].as_ref().unwrap(), alone);
    }
    let few = model.generate_all(&prompts, 5, &mut [SamplingParams::new()]);
    assert!(few.iter().all(|r| r.as_ref().unwrap_err().to_string().contains("4 prompts but 1 parameters")));
    let bad = model.generate_all(&prompts[..1], 5, &mut [SamplingParams::new().top_p(7.0)]);
    assert!(bad[0].as_ref().unwrap_err().to_string().contains("top_p"));
}

#[test]
fn models_that_cannot_generate_say_so() {
    for (name, part) in [("bert-base", "decoder"), ("llama-embedding", "no scores"), ("gemma3-embedding", "")] {
        let model = load(name);
        let error = model.generate(&[1], 3, &mut SamplingParams::new()).unwrap_err();
        assert!(matches!(error, InferError::InvalidArgument(_)) && error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_cancelled_sequence_keeps_its_tokens() {
    let model = load("mistral-base");
    let flag = Arc::new(AtomicBool::new(false));
    let mut params = SamplingParams::new().cancel(flag.clone());
    let whole = model.generate(&[1, 2, 3], 10, &mut params).unwrap();
    assert_eq!(whole.finish, FinishReason::Length);
    let mut stream = model.stream(&[1, 2, 3], 10, &mut params).unwrap();
    let first: Vec<u32> = stream.by_ref().take(4).map(|t| t.unwrap().id).collect();
    flag.store(true, Ordering::Relaxed);
    assert!(stream.next().is_none() && stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(&FinishReason::Cancelled));
    drop(stream);
    assert_eq!(first, whole.tokens[..4]);
    let none = model.generate(&[1, 2, 3], 10, &mut params).unwrap();
    assert_eq!((none.tokens.len(), none.finish), (0, FinishReason::Cancelled));
    // One of a batch.
    let mut own = SamplingParams::new();
    let mut decoding = Decoding::new(&model, None);
    flag.store(false, Ordering::Relaxed);
    decoding.add(&[1, 2, 3], 10, &mut params).unwrap();
    decoding.add(&[1, 2, 3], 10, &mut own).unwrap();
    assert_eq!((decoding.advance(), decoding.advance()), (2, 2));
    flag.store(true, Ordering::Relaxed);
    while decoding.advance() > 0 {}
    assert_eq!(decoding.generated(), 12);
    let results: Vec<Generation> = decoding.finish().into_iter().map(Result::unwrap).collect();
    assert_eq!((results[0].tokens.as_slice(), &results[0].finish), (&whole.tokens[..2], &FinishReason::Cancelled));
    assert_eq!(results[1], whole);
}

#[test]
fn a_cache_goes_from_call_to_call() {
    let model = load("gemma3-base");
    let mut cache = model.kv_cache().unwrap();
    let mut ids = vec![2, 9, 4];
    for turn in 0..4 {
        let alone = model.generate(&ids, 6, &mut sampled(turn)).unwrap();
        let mut params = sampled(turn);
        let stream = model.stream_cached(&mut cache, &ids, 6, &mut params).unwrap();
        let tokens: Vec<u32> = stream.map(|t| t.unwrap().id).collect();
        assert_eq!(tokens, alone.tokens, "turn {turn}");
        ids.extend(&tokens);
        assert_eq!(cache.ids(), &ids[..ids.len() - 1], "turn {turn}");
        ids.extend([turn as u32 + 20, 3]);
    }
    // Another prompt, one that the cache holds whole, and a shorter one.
    for prompt in [vec![2, 9, 5, 5], ids.clone(), ids[..5].to_vec()] {
        let alone = model.generate(&prompt, 4, &mut SamplingParams::new()).unwrap();
        let mut params = SamplingParams::new();
        let stream = model.stream_cached(&mut cache, &prompt, 4, &mut params).unwrap();
        assert_eq!(stream.map(|t| t.unwrap().id).collect::<Vec<_>>(), alone.tokens);
    }
}

#[test]
fn log_probabilities_are_those_of_the_scores() {
    let model = load("phi-base");
    let vocab = model.spec().embedding.vocab_size;
    let mut params = sampled(3).logprobs(4).vocab_limit(vocab - 9);
    let found = model.generate(&[7, 8, 9], 8, &mut params).unwrap();
    assert_eq!(found.logprobs.len(), 8);
    let mut ids = vec![7, 8, 9];
    for (token, logprobs) in found.tokens.iter().zip(&found.logprobs) {
        let scores = model.prefill(&mut model.kv_cache().unwrap(), &ids).unwrap();
        let total: f64 = scores.iter().map(|s| f64::from(*s).exp()).sum();
        let of = |id: u32| f64::from(scores[id as usize]) - total.ln();
        assert!((logprobs.chosen - of(*token)).abs() < 1e-12);
        let mut order: Vec<u32> = (0..vocab as u32 - 9).collect();
        order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        assert_eq!(logprobs.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), order[..4]);
        assert!(logprobs.top.iter().all(|(id, p)| (p - of(*id)).abs() < 1e-12));
        ids.push(*token);
    }
    let none = model.generate(&[7], 3, &mut SamplingParams::new()).unwrap();
    assert!(none.logprobs.is_empty() && none.text.is_empty());
    let only = model.generate(&[7], 3, &mut SamplingParams::new().logprobs(0)).unwrap();
    assert!(only.logprobs.len() == 3 && only.logprobs.iter().all(|l| l.top.is_empty() && l.chosen < 0.0));
    let all = model.generate(&[7], 1, &mut SamplingParams::new().logprobs(9999)).unwrap();
    let sum: f64 = all.logprobs[0].top.iter().map(|(_, p)| p.exp()).sum();
    assert!(all.logprobs[0].top.len() == vocab && (sum - 1.0).abs() < 1e-12);
}
