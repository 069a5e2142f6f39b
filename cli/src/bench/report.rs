//! Rounds of rows, and what is printed of them.

use std::collections::BTreeMap;
use std::time::Instant;

use kin_infer::gpu::{Cost, Profiled};
use serde_json::{Value, json};

use super::machine::{Limit, Pool};
use crate::failure::Result;
use crate::output::Sink;

/// What one run of a row did.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    pub texts: usize,
    pub tokens: usize,
}

/// Work that is measured.
pub struct Row {
    pub name: String,
    pub limit: Limit,
    pub run: Box<dyn FnMut() -> Result<Done> + Send>,
}

/// What was measured of a row with a number of threads.
pub struct Measured {
    name: String,
    limit: Limit,
    threads: usize,
    done: Done,
    /// Seconds and the limit's rate around them, of each round.
    samples: Vec<(f64, Option<f64>)>,
    /// Of all rounds.
    costs: BTreeMap<String, Cost>,
}

/// Runs every row with every number of threads once to warm up, then in interleaved rounds.
pub fn measure(rows: &mut [Row], pools: &mut [Pool], profiled: &Profiled, rounds: u32) -> Result<Vec<Measured>> {
    let (mut table, count) = (Vec::new(), rows.len());
    for pool in pools.iter_mut() {
        for row in rows.iter_mut() {
            pool.prepare(row.limit)?;
            let done = pool.run(|| (row.run)())?;
            let (name, limit, threads) = (row.name.clone(), row.limit, pool.threads);
            table.push(Measured { name, limit, threads, done, samples: Vec::new(), costs: BTreeMap::new() });
        }
    }
    for _ in 0..rounds {
        for (p, pool) in pools.iter().enumerate() {
            for (r, row) in rows.iter_mut().enumerate() {
                let before = pool.measure(row.limit);
                profiled.take();
                let start = Instant::now();
                pool.run(|| (row.run)())?;
                let seconds = start.elapsed().as_secs_f64();
                let costs = profiled.take();
                // Whatever disturbs a peak lowers it: the higher one is nearer to the truth.
                let limit = before.zip(pool.measure(row.limit)).map(|(a, b)| a.max(b));
                let measured = &mut table[p * count + r];
                measured.samples.push((seconds, limit));
                for (name, cost) in costs {
                    let sum = measured.costs.entry(name).or_default();
                    sum.calls += cost.calls;
                    sum.time += cost.time;
                    sum.flops += cost.flops;
                    sum.bytes += cost.bytes;
                }
            }
        }
    }
    Ok(table)
}

impl Measured {
    fn rounds(&self) -> f64 {
        self.samples.len() as f64
    }

    /// The lowest, the middle and the highest of a figure of the rounds.
    fn spread(&self, of: impl Fn(&(f64, Option<f64>)) -> Option<f64>) -> Option<[f64; 3]> {
        let mut values: Vec<f64> = self.samples.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        Some([*values.first()?, values[values.len() / 2], *values.last()?])
    }

    fn tokens_per_second(&self) -> [f64; 3] {
        self.spread(|(seconds, _)| Some(self.done.tokens as f64 / seconds)).unwrap_or_default()
    }

    /// What a round does of what its limit counts.
    fn work(&self) -> f64 {
        let sum = |of: fn(&Cost) -> f64| self.costs.values().map(of).sum::<f64>() / self.rounds();
        match self.limit {
            Limit::Flops => sum(|c| c.flops),
            Limit::Bytes => sum(|c| c.bytes),
        }
    }

    fn share(&self) -> Option<[f64; 3]> {
        let work = self.work();
        self.spread(|(seconds, limit)| Some(work / seconds / (*limit)?))
    }

    /// The middle of the limit's measurements.
    fn limit_rate(&self) -> Option<f64> {
        self.spread(|(_, limit)| *limit).map(|s| s[1])
    }

    fn json(&self) -> Value {
        let operations: Vec<Value> = self.operations().iter().map(|o| o.json(self.rounds())).collect();
        let [low, median, high] = self.tokens_per_second();
        json!({
            "name": self.name, "threads": self.threads, "texts": self.done.texts, "tokens": self.done.tokens,
            "tokens_per_second": {"median": median, "lowest": low, "highest": high},
            "texts_per_second": median * self.done.texts as f64 / self.done.tokens as f64,
            "limit": match self.limit { Limit::Flops => "f32 flops", Limit::Bytes => "bytes read" },
            "limit_per_second": self.limit_rate(), "work": self.work(),
            "share_of_limit": self.share().map(|[low, median, high]| json!({"median": median, "lowest": low, "highest": high})),
            "operations": operations,
        })
    }

    /// Operations, the longest first.
    fn operations(&self) -> Vec<Operation<'_>> {
        let total: f64 = self.costs.values().map(|c| c.time.as_secs_f64()).sum();
        let mut list: Vec<_> = self.costs.iter().map(|(name, cost)| Operation { name, cost, total }).collect();
        list.sort_by_key(|o| std::cmp::Reverse(o.cost.time));
        list
    }
}

struct Operation<'a> {
    name: &'a str,
    cost: &'a Cost,
    total: f64,
}

impl Operation<'_> {
    fn seconds(&self) -> f64 {
        self.cost.time.as_secs_f64().max(1e-12)
    }

    fn json(&self, rounds: f64) -> Value {
        json!({
            "name": self.name, "calls": self.cost.calls as f64 / rounds, "share_of_time": self.seconds() / self.total,
            "seconds": self.seconds() / rounds, "flops": self.cost.flops / rounds, "bytes": self.cost.bytes / rounds,
        })
    }
}

pub fn print(table: &[Measured], model: &str, profile: bool, as_json: bool) -> Result<()> {
    let device = kin_infer::cpu::selected()?.name();
    let mut out = Sink::stdout();
    if as_json {
        let rows: Vec<Value> = table.iter().map(Measured::json).collect();
        out.json(&json!({"model": model, "instruction_set": device, "rows": rows}))?;
        return out.commit();
    }
    out.line(&format!("{model}, {device}\n"))?;
    out.line("| work | threads | texts/s | tokens/s | lowest to highest | limit | share of it | lowest to highest |")?;
    out.line("|-|-|-|-|-|-|-|-|")?;
    for row in table {
        let [low, median, high] = row.tokens_per_second();
        let texts = median * row.done.texts as f64 / row.done.tokens as f64;
        let limit = match (row.limit, row.limit_rate()) {
            (_, None) => "not measured here".to_string(),
            (Limit::Flops, Some(rate)) => format!("{:.0} GFLOP/s", rate / 1e9),
            (Limit::Bytes, Some(rate)) => format!("{:.1} GB/s", rate / 1e9),
        };
        let (share, range) = match row.share() {
            Some([low, median, high]) => (format!("{median:.2}"), format!("{low:.2} to {high:.2}")),
            None => ("-".to_string(), "-".to_string()),
        };
        out.line(&format!(
            "| {} | {} | {texts:.1} | {median:.0} | {low:.0} to {high:.0} | {limit} | {share} | {range} |",
            row.name, row.threads
        ))?;
    }
    if profile {
        table.iter().try_for_each(|row| print_operations(&mut out, row))?;
    }
    out.commit()
}

fn print_operations(out: &mut Sink, row: &Measured) -> Result<()> {
    out.line(&format!("\n{}, {} thread(s)\n", row.name, row.threads))?;
    out.line("| operation | calls | share of time | GFLOP/s | share of peak | GB/s |\n|-|-|-|-|-|-|")?;
    let peak = row.limit_rate().filter(|_| row.limit == Limit::Flops);
    for operation in row.operations() {
        let (seconds, cost) = (operation.seconds(), operation.cost);
        let flops = if cost.flops > 0.0 { format!("{:.0}", cost.flops / seconds / 1e9) } else { "-".to_string() };
        // Costs are summed over threads: each has its part of the peak.
        let of_thread = peak.map(|peak| peak / row.threads as f64).filter(|_| cost.flops > 0.0);
        let share = of_thread.map_or("-".to_string(), |peak| format!("{:.2}", cost.flops / seconds / peak));
        let calls = cost.calls as f64 / row.rounds();
        let time = seconds / operation.total;
        let bytes = cost.bytes / seconds / 1e9;
        out.line(&format!("| {} | {calls:.0} | {time:.3} | {flops} | {share} | {bytes:.1} |", operation.name))?;
    }
    Ok(())
}
