//! Which sequences are computed together.

/// What a batch may hold, and how batches are run. No bit of a result depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Tokens of a batch; a longer sequence is a batch of its own.
    pub tokens: usize,
    /// Sum of the squared lengths of a batch's sequences, what attention costs; a sequence beyond it is a batch of its
    /// own.
    pub area: usize,
    /// Tokens over which sequences are sorted by length.
    pub window: usize,
    /// Batches that are computed side by side, each with its own activations. Threads bound it too.
    pub workers: usize,
    /// Bytes of activations that may be held: a sequence longer than a batch that needs more fails, before it begins.
    pub room: Option<usize>,
    /// Whether the sequences of a batch that memory did not suffice for are tried one by one.
    pub retry: bool,
}

impl Default for BatchLimits {
    /// Batches beyond which nothing is won: their activations leave the caches.
    fn default() -> Self {
        Self { tokens: 1024, area: 1024 * 1024 / 2, window: 64 * 1024, workers: usize::MAX, room: None, retry: true }
    }
}

/// Groups the items of a call into batches, given their lengths.
///
/// The call is cut, in order, into windows of about `window` tokens; in each, items are sorted by length, the longest
/// first, and fill batch after batch. Long batches so come early, where threads that are done with theirs can help, and
/// no item waits for more than a window of others. As there is no padding, a batch costs what its items cost: nothing
/// is gained by equal lengths, and nothing lost by unequal ones.
pub(crate) fn plan(lengths: &[usize], limits: &BatchLimits) -> Vec<Vec<usize>> {
    let mut batches = Vec::new();
    let mut first = 0;
    while first < lengths.len() {
        let mut tokens = 0usize;
        let fits = |len: &&usize| {
            tokens = tokens.saturating_add(**len);
            tokens <= limits.window
        };
        let end = first + lengths[first..].iter().take_while(fits).count().max(1);
        let mut window: Vec<usize> = (first..end).collect();
        window.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));
        fill(&window, lengths, limits, &mut batches);
        first = end;
    }
    batches
}

/// Fills batches with a window's items in the given order.
fn fill(items: &[usize], lengths: &[usize], limits: &BatchLimits, batches: &mut Vec<Vec<usize>>) {
    let mut batch: Vec<usize> = Vec::new();
    let (mut tokens, mut area) = (0usize, 0usize);
    for &item in items {
        let len = lengths[item];
        let square = len.saturating_mul(len);
        let full = tokens.saturating_add(len) > limits.tokens || area.saturating_add(square) > limits.area;
        if full && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            (tokens, area) = (0, 0);
        }
        batch.push(item);
        (tokens, area) = (tokens.saturating_add(len), area.saturating_add(square));
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(tokens: usize, area: usize, window: usize) -> BatchLimits {
        BatchLimits { tokens, area, window, ..BatchLimits::default() }
    }

    #[test]
    fn batches_are_full_and_hold_every_item_once() {
        let lengths = [5, 2000, 1, 512, 512, 3];
        let found = plan(&lengths, &limits(1024, usize::MAX, usize::MAX));
        assert_eq!(found, vec![vec![1], vec![3, 4], vec![0, 5, 2]]);
        assert!(plan(&[], &BatchLimits::default()).is_empty());
    }

    #[test]
    fn area_bounds_a_batch_that_its_tokens_would_not() {
        // Squares: 1,000,000; 360,000 twice; 10,000 each of the rest.
        let lengths = [600, 100, 1000, 100, 600, 100];
        let found = plan(&lengths, &limits(4096, 730_000, usize::MAX));
        assert_eq!(found, vec![vec![2], vec![0, 4, 1], vec![3, 5]]);
    }

    #[test]
    fn windows_bound_how_far_an_item_is_put_off() {
        let lengths = [10, 30, 20, 40, 90, 5, 5];
        let found = plan(&lengths, &limits(50, usize::MAX, 60));
        // Windows: [10, 30, 20], [40], [90], [5, 5].
        assert_eq!(found, vec![vec![1, 2], vec![0], vec![3], vec![4], vec![5, 6]]);
    }

    #[test]
    fn one_long_text_beside_ten_thousand_short_ones_costs_what_it_should() {
        let limits = BatchLimits::default();
        let mut lengths: Vec<usize> = (0..10_000).map(|i| 5 + i % 28).collect();
        let short: Vec<Vec<usize>> = plan(&lengths, &limits);
        lengths.insert(5000, 8192);
        let found = plan(&lengths, &limits);
        let mut items: Vec<usize> = found.concat();
        items.sort_unstable();
        assert_eq!(items, (0..lengths.len()).collect::<Vec<_>>(), "every item once");
        let with_long: Vec<&Vec<usize>> = found.iter().filter(|b| b.contains(&5000)).collect();
        assert_eq!(with_long, [&vec![5000]], "the long text is a batch of its own");
        for batch in found.iter().filter(|b| !b.contains(&5000)) {
            assert!(batch.iter().map(|&i| lengths[i]).sum::<usize>() <= limits.tokens);
        }
        let fewest = lengths.iter().filter(|len| **len < 8192).sum::<usize>().div_ceil(limits.tokens);
        assert!(short.len() <= fewest + fewest / 20 + 1, "{} batches, {fewest} would do", short.len());
        assert!(found.len() <= short.len() + 3, "its window is cut where it stands: {} batches", found.len());
    }

    #[test]
    fn extreme_lengths_overflow_nothing() {
        let found = plan(&[usize::MAX, 1, usize::MAX, 0], &BatchLimits::default());
        assert_eq!(found.concat().len(), 4);
        assert_eq!(plan(&[3, 3], &limits(0, 0, 0)), vec![vec![0], vec![1]]);
    }
}
