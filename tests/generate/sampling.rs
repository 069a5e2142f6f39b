//! The choice of a token: against transformers, against a second, plain implementation, and its errors.

use kin_infer::generate::{Random, SamplingParams};

use crate::{floats, ids, json};

/// Numbers of the published generators, computed from their definitions with Python's integers.
#[test]
fn random_numbers_are_those_of_the_definition() {
    for (seed, expected) in [
        (0, [5987356902031041503u64, 7051070477665621255, 6633766593972829180, 211316841551650330]),
        (1, [14971601782005023387, 13781649495232077965, 1847458086238483744, 13765271635752736470]),
        (u64::MAX, [6254647548650071986, 16610832622747802512, 16422857234328439435, 5048281510058307187]),
    ] {
        let mut random = Random::new(seed);
        assert_eq!(expected.map(|_| random.next_u64()), expected, "seed {seed}");
    }
    let (mut bits, mut uniform) = (Random::new(9), Random::new(9));
    for _ in 0..1000 {
        let u = uniform.uniform();
        assert!((0.0..1.0).contains(&u) && u == (bits.next_u64() >> 11) as f64 / 9007199254740992.0);
    }
}

/// The surviving tokens of transformers' LogitsProcessors, and their probabilities.
#[test]
fn distributions_agree_with_transformers() {
    let reference = json("gen-sampling.json");
    let cases = reference["cases"].as_array().unwrap();
    assert!(cases.len() >= 80);
    for case in cases {
        let scores: Vec<f32> =
            floats(&reference["scores"][case["scores"].as_str().unwrap()]).iter().map(|s| *s as f32).collect();
        let number = |key: &str| case[key].as_f64().unwrap();
        let params = SamplingParams::new()
            .temperature(number("temperature"))
            .top_k(case["top_k"].as_u64().unwrap() as usize)
            .top_p(number("top_p"))
            .min_p(number("min_p"))
            .repetition_penalty(number("repetition_penalty"));
        let found = params.distribution(&scores, &ids(&case["context"])).unwrap();
        let (found_ids, found): (Vec<u32>, Vec<f64>) = found.into_iter().unzip();
        assert_eq!(found_ids, ids(&case["ids"]), "{case}");
        for (found, expected) in found.iter().zip(floats(&case["probabilities"])) {
            assert!((found - expected).abs() <= 1e-12, "{found} is not {expected}: {case}");
        }
    }
}

/// A second implementation: everything sorted, nothing selected, sums as the documentation states them.
struct Plain {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    penalty: f64,
    limit: usize,
}

impl Plain {
    fn weights(&self, scores: &[f32], context: &[u32]) -> Vec<(u32, f64)> {
        let mut s: Vec<f64> = scores.iter().take(self.limit).map(|x| *x as f64).collect();
        for (i, x) in s.iter_mut().enumerate() {
            if self.penalty != 1.0 && context.contains(&(i as u32)) {
                *x = if *x < 0.0 { *x * self.penalty } else { *x / self.penalty };
            }
        }
        let top = s.iter().copied().fold(f64::MIN, f64::max);
        if self.temperature == 0.0 {
            return vec![(s.iter().position(|x| *x == top).unwrap() as u32, 1.0)];
        }
        let z: Vec<f64> = s.iter().map(|x| (x - top) / self.temperature).collect();
        let mut order: Vec<u32> = (0..z.len() as u32).collect();
        order.sort_by(|a, b| z[*b as usize].partial_cmp(&z[*a as usize]).unwrap());
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let weight = |id: u32| libm::exp(z[id as usize]);
        if self.top_p < 1.0 {
            let mut by_id = order.clone();
            by_id.sort();
            let total = by_id.iter().fold(0.0, |sum, id| sum + weight(*id));
            let mut before = 0.0;
            let mut kept = Vec::new();
            for id in order {
                if kept.is_empty() || before < self.top_p * total {
                    kept.push(id);
                }
                before += weight(id);
            }
            order = kept;
        }
        order.retain(|id| weight(*id) >= self.min_p);
        order.sort();
        order.into_iter().map(|id| (id, weight(id))).collect()
    }

    fn choose(&self, scores: &[f32], context: &[u32], random: &mut Random) -> u32 {
        let weights = self.weights(scores, context);
        if self.temperature == 0.0 {
            return weights[0].0;
        }
        let total = weights.iter().fold(0.0, |sum, (_, w)| sum + w);
        let target = random.uniform() * total;
        let mut sum = 0.0;
        for (id, weight) in &weights {
            sum += weight;
            if sum > target {
                return *id;
            }
        }
        unreachable!("the target is below the total")
    }
}

/// Scores with many ties, both zeros among them.
fn scores(random: &mut Random, len: usize) -> Vec<f32> {
    let coarse = random.next_u64().is_multiple_of(2);
    let score = |_| {
        let x = (random.uniform() - 0.5) * 12.0;
        if coarse { (x.round() * 0.5) as f32 } else { x as f32 }
    };
    (0..len).map(score).collect()
}

#[test]
fn choices_agree_with_a_second_implementation() {
    let mut random = Random::new(3);
    for round in 0..1500 {
        let len = 1 + (random.next_u64() % if round % 10 == 0 { 3000 } else { 90 }) as usize;
        let scores = scores(&mut random, len);
        let mut one_of = |values: &[f64]| values[(random.next_u64() % values.len() as u64) as usize];
        let plain = Plain {
            temperature: one_of(&[0.0, 0.3, 1.0, 1.0, 2.5, 1e-300]),
            top_k: one_of(&[0.0, 0.0, 1.0, 2.0, 7.0, 70.0, 5000.0]) as usize,
            top_p: one_of(&[1.0, 1.0, 0.0, 0.2, 0.5, 0.9, 0.999]),
            min_p: one_of(&[0.0, 0.0, 0.01, 0.3, 1.0]),
            penalty: one_of(&[1.0, 1.0, 1.4, 0.7]),
            limit: one_of(&[1e9, 1e9, 1.0, 40.0]) as usize,
        };
        let context: Vec<u32> = (0..7).map(|_| (random.next_u64() % (len as u64 + 3)) as u32).collect();
        let seed = random.next_u64();
        let mut params = SamplingParams::new()
            .temperature(plain.temperature)
            .top_k(plain.top_k)
            .top_p(plain.top_p)
            .min_p(plain.min_p)
            .repetition_penalty(plain.penalty)
            .vocab_limit(plain.limit)
            .seed(seed);
        let weights = plain.weights(&scores, &context);
        let total = weights.iter().fold(0.0, |sum, (_, w)| sum + w);
        let expected: Vec<(u32, u64)> = weights.iter().map(|(id, w)| (*id, (w / total).to_bits())).collect();
        let found = params.distribution(&scores, &context).unwrap();
        let found: Vec<(u32, u64)> = found.iter().map(|(id, p)| (*id, p.to_bits())).collect();
        assert_eq!(found, expected, "round {round}");
        let mut numbers = Random::new(seed);
        for draw in 0..4 {
            let expected = plain.choose(&scores, &context, &mut numbers);
            assert_eq!(params.choose(&scores, &context).unwrap(), expected, "round {round}, draw {draw}");
        }
    }
}

#[test]
fn ties_go_to_the_lowest_id() {
    let scores = [1.0, 3.0, -0.0, 3.0, 0.0, 3.0];
    assert_eq!(SamplingParams::new().choose(&scores, &[]).unwrap(), 1);
    let kept = |params: SamplingParams| -> Vec<u32> {
        params.temperature(1.0).distribution(&scores, &[]).unwrap().into_iter().map(|(id, _)| id).collect()
    };
    assert_eq!(kept(SamplingParams::new().top_k(2)), [1, 3]);
    assert_eq!(kept(SamplingParams::new().top_k(5)), [0, 1, 2, 3, 5]);
    assert_eq!(kept(SamplingParams::new().top_p(0.5)), [1, 3]);
    assert_eq!(kept(SamplingParams::new().top_p(0.0)), [1]);
    assert_eq!(kept(SamplingParams::new().min_p(1.0)), [1, 3, 5]);
    assert_eq!(kept(SamplingParams::new().vocab_limit(1)), [0]);
    // The penalty counts a token once, however often it stands in the context.
    let params = SamplingParams::new().repetition_penalty(2.0);
    assert_eq!(params.distribution(&[1.0, 1.5, -1.0], &[1, 1, 1, 2, 9]).unwrap(), [(0, 1.0)]);
}

/// Frequencies of many draws lie near the probabilities.
#[test]
fn draws_follow_the_distribution() {
    let scores = [0.5, -1.0, 2.0, 0.0];
    let mut params = SamplingParams::new().temperature(0.9).seed(5);
    let expected = params.distribution(&scores, &[]).unwrap();
    let mut counts = [0u32; 4];
    for _ in 0..40_000 {
        counts[params.choose(&scores, &[]).unwrap() as usize] += 1;
    }
    for (id, p) in expected {
        let (found, spread) = (f64::from(counts[id as usize]) / 4e4, (p * (1.0 - p) / 4e4).sqrt());
        assert!((found - p).abs() < 4.0 * spread, "token {id}: {found} instead of {p}");
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let new = SamplingParams::new;
    for (params, name) in [
        (new().temperature(f64::NAN), "temperature"),
        (new().temperature(-0.1), "temperature"),
        (new().temperature(f64::INFINITY), "temperature"),
        (new().top_p(1.1), "top_p"),
        (new().top_p(-0.1), "top_p"),
        (new().top_p(f64::NAN), "top_p"),
        (new().min_p(2.0), "min_p"),
        (new().min_p(f64::NAN), "min_p"),
        (new().repetition_penalty(0.0), "repetition_penalty"),
        (new().repetition_penalty(-1.0), "repetition_penalty"),
        (new().repetition_penalty(f64::NAN), "repetition_penalty"),
        (new().repetition_penalty(1e300), "repetition_penalty"),
        (new().vocab_limit(0), "vocab_limit"),
        (new().stop_texts(["a", ""]), "stop text"),
    ] {
        let error = params.check().unwrap_err();
        assert!(matches!(error, kin_infer::InferError::InvalidArgument(_)));
        assert!(error.to_string().contains(name), "{error}");
        assert!(params.distribution(&[1.0], &[]).is_err());
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = new().choose(&[0.0, bad], &[]).unwrap_err().to_string();
        assert!(error.contains("token 1"), "{error}");
    }
    assert!(new().choose(&[], &[]).is_err());
}
