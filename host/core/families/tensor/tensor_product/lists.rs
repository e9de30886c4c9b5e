//! Lists of a sum over a small sparse tensor: terms sorted into segments, pairs and entries. See `TensorProductParams`.

use einsparse_kernels::families::{TENSOR_LAST, TENSOR_NONE, TENSOR_PAIRS, piece_words};

use crate::indirect::TensorProductKind;

/// Term: the rows of the operands and the offset of its coefficient. Rows of absent operands are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term {
    pub(crate) out: u32,
    pub(crate) d: u32,
    pub(crate) a: u32,
    pub(crate) f: u32,
    pub(crate) y: u32,
    pub(crate) place: u32,
}

/// Lists that a kernel reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) words: Vec<u32>,
    /// Segments, pairs and entries; with pieces, the max over the pieces.
    pub(crate) counts: [u32; 3],
    /// Totals over all pieces.
    pub(crate) totals: [u32; 3],
}

#[derive(Default)]
struct Builder {
    segments: Vec<[u32; 4]>,
    pairs: Vec<[u32; 4]>,
    entries: Vec<[u32; 2]>,
}

/// Entries store numbers of 16 bits.
const LIMIT: usize = 1 << 16;

impl Lists {
    /// Makes the lists of terms in any order, for `rows` rows of the output. Some kernels read pieces of `piece` rows.
    /// With `has_d`, D scales segments. Returns `None` if a number does not fit the 16 bits of the kernel.
    pub(crate) fn new(
        (kind, own): (TensorProductKind, bool),
        terms: &[Term],
        (rows, piece): (usize, u32),
        (has_d, has_f): (bool, bool),
    ) -> Option<Lists> {
        let mut terms = terms.to_vec();
        if kind == TensorProductKind::Weights {
            terms.iter_mut().for_each(|t| t.d = t.f);
        }
        terms.sort_unstable();
        let wide = |t: &Term| t.a.max(t.y) as usize >= LIMIT;
        if terms.len() >= LIMIT / 4 || rows >= LIMIT || terms.iter().any(wide) {
            return None;
        }
        let mut list = Builder::default();
        match (kind, own) {
            (TensorProductKind::Connected | TensorProductKind::Weights, false) => {
                return Some(pieces(&terms, rows as u32, piece));
            }
            (TensorProductKind::Connected, true) => {
                list.by_matrix(&mut terms);
                return Some(list.done(Vec::new()));
            }
            _ => {}
        }
        if kind == TensorProductKind::Traces {
            list.of_matrices(&mut terms);
            return Some(list.done(vec![0; rows + 1]));
        }
        if kind == TensorProductKind::Sums {
            list.triples(&terms, has_f);
        }
        let mut starts = Vec::with_capacity(rows + 1);
        let mut rest = &terms[..];
        for row in 0..rows as u32 {
            starts.push(list.segments.len() as u32);
            let own;
            (own, rest) = rest.split_at(rest.partition_point(|t| t.out <= row));
            match kind {
                TensorProductKind::Items => list.of_entries(row, own),
                TensorProductKind::Sums => list.of_triples(row, own, has_f),
                TensorProductKind::Channels => list.of_pairs(row, own, (has_d, usize::MAX)),
                TensorProductKind::Weights => list.of_pairs(row, own, (true, usize::MAX)),
                TensorProductKind::Connected | TensorProductKind::Traces => {}
            }
        }
        starts.push(list.segments.len() as u32);
        Some(list.done(starts))
    }
}

/// Makes the lists of sorted terms in pieces of `piece` rows, each padded to the length of the longest.
fn pieces(terms: &[Term], rows: u32, piece: u32) -> Lists {
    let mut rest = terms;
    let mut all: Vec<(Builder, Vec<u32>)> = Vec::new();
    for first in (0..rows).step_by(piece.max(1) as usize) {
        let mut list = Builder::default();
        let mut starts = Vec::new();
        for row in first..(first + piece).min(rows) {
            starts.push(list.segments.len() as u32);
            let own;
            (own, rest) = rest.split_at(rest.partition_point(|t| t.out <= row));
            list.of_pairs(row, own, (true, TENSOR_PAIRS as usize));
        }
        starts.resize(piece as usize + 1, list.segments.len() as u32);
        all.push((list, starts));
    }
    let (mut counts, mut totals) = ([0; 3], [0; 3]);
    for (list, _) in &all {
        for ((most, total), own) in counts.iter_mut().zip(&mut totals).zip(list.counts()) {
            *most = own.max(*most);
            *total += own;
        }
    }
    let [segments, pairs, entries] = counts.map(|n| n as usize);
    let [length, _] = piece_words(counts, piece);
    let mut words = Vec::with_capacity(all.len() * length as usize);
    for (mut list, starts) in all {
        let end = words.len() + length as usize;
        list.segments.resize(segments, [0; 4]);
        list.pairs.resize(pairs, [0; 4]);
        list.entries.resize(entries, [0, TENSOR_NONE]);
        words.extend(list.words(starts));
        words.resize(end, 0);
    }
    Lists { words, counts, totals }
}

impl Builder {
    fn counts(&self) -> [u32; 3] {
        [self.segments.len(), self.pairs.len(), self.entries.len()].map(|n| n as u32)
    }

    fn words(self, starts: Vec<u32>) -> impl Iterator<Item = u32> {
        let lists = self.segments.into_iter().chain(self.pairs).flatten();
        lists.chain(self.entries.into_iter().flatten()).chain(starts)
    }

    /// Returns the lists, followed by the first segment of each row.
    fn done(self, starts: Vec<u32>) -> Lists {
        let counts = self.counts();
        Lists { words: self.words(starts).collect(), counts, totals: counts }
    }

    /// Adds a segment for each matrix and row of F, and a pair for each row of A. Entries refer to rows of the output.
    fn of_matrices(&mut self, terms: &mut [Term]) {
        let key = |t: &Term| (t.d, t.f, t.a);
        terms.sort_unstable_by_key(|t| (key(t), t.out, t.place));
        for own in terms.chunk_by(|s, t| (s.d, s.f) == (t.d, t.f)) {
            let first = self.pairs.len() as u32;
            for pair in own.chunk_by(|s, t| s.a == t.a) {
                let start = self.entries.len() as u32;
                self.pairs.push([pair[0].a, 0, start, pair.len() as u32]);
                self.entries.extend(pair.iter().map(|t| [t.out, t.place]));
            }
            let count = self.pairs.len() as u32 - first;
            self.segments.push([first, count, own[0].d, own[0].f]);
        }
    }

    /// Adds a segment for each matrix and row of the output. The segments of a matrix are consecutive.
    fn by_matrix(&mut self, terms: &mut [Term]) {
        terms.sort_unstable_by_key(|t| (t.d, t.out, t.a, t.y, t.place));
        for own in terms.chunk_by(|s, t| (s.d, s.out) == (t.d, t.out)) {
            self.segment(own[0].out, own[0].d, own.chunk_by(|s, t| s.a == t.a));
        }
    }

    /// Adds a segment of these pairs.
    fn segment<'a>(&mut self, row: u32, d: u32, pairs: impl Iterator<Item = &'a [Term]>) {
        let first = self.pairs.len() as u32;
        for pair in pairs {
            let start = self.entries.len() as u32;
            self.pairs.push([pair[0].a, 0, start, pair.len() as u32]);
            self.entries.extend(pair.iter().map(|t| [t.y, t.place]));
        }
        let count = self.pairs.len() as u32 - first;
        self.segments.push([first, count, d, row]);
    }

    /// Adds the segment of a row for kernels that read four entries at a time.
    fn of_entries(&mut self, row: u32, terms: &[Term]) {
        let first = self.entries.len() as u32;
        self.entries.extend(terms.iter().map(|t| [t.y | t.a << 16, t.place]));
        while !self.entries.len().is_multiple_of(4) {
            self.entries.push([0, TENSOR_NONE]);
        }
        let count = terms.len() as u32;
        self.segments.push([first, count, TENSOR_NONE, row | TENSOR_LAST]);
    }

    /// Adds segments of a row: one per row of D, of at most `most` pairs. Each begins at an even pair index.
    fn of_pairs(&mut self, row: u32, terms: &[Term], (has_d, most): (bool, usize)) {
        for own in terms.chunk_by(|s, t| s.d == t.d) {
            let pairs: Vec<&[Term]> = own.chunk_by(|s, t| s.a == t.a).collect();
            for pairs in pairs.chunks(most) {
                self.even();
                let d = if has_d { own[0].d } else { TENSOR_NONE };
                self.segment(row, d, pairs.iter().copied());
            }
        }
        if terms.is_empty() {
            // An empty row has a segment too, which writes the zeros.
            self.even();
            let first = self.pairs.len() as u32;
            self.segments.push([first, 0, TENSOR_NONE, row]);
        }
        if let Some(last) = self.segments.last_mut() {
            last[3] |= TENSOR_LAST;
        }
    }

    fn even(&mut self) {
        if !self.pairs.len().is_multiple_of(2) {
            self.pairs.push([0; 4]);
        }
    }

    /// Sets the pairs to the distinct triples of rows, in ascending order.
    fn triples(&mut self, terms: &[Term], has_f: bool) {
        let mut all: Vec<[u32; 4]> = terms.iter().map(|t| triple(t, has_f)).collect();
        all.sort_unstable();
        all.dedup();
        self.pairs = all;
    }

    /// Adds the segment of a row. Its entries refer to triples.
    fn of_triples(&mut self, row: u32, terms: &[Term], has_f: bool) {
        let first = self.entries.len() as u32;
        for term in terms {
            let at = self.pairs.partition_point(|p| *p < triple(term, has_f));
            self.entries.push([at as u32, term.place]);
        }
        let count = terms.len() as u32;
        self.segments.push([first, count, TENSOR_NONE, row | TENSOR_LAST]);
    }
}

/// Returns the rows of A, F and D.
fn triple(term: &Term, has_f: bool) -> [u32; 4] {
    let f = if has_f { term.f } else { TENSOR_NONE };
    [term.a, f, term.d, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(out: u32, d: u32, a: u32, y: u32, place: u32) -> Term {
        Term { out, d, a, f: 0, y, place }
    }

    #[test]
    fn terms_become_segments_of_pairs_of_entries() {
        let terms = [
            term(2, 1, 5, 7, 3),
            term(0, 0, 4, 1, 0),
            term(0, 0, 4, 2, 1),
            term(0, 0, 6, 1, 2),
            term(0, 3, 4, 1, 9),
        ];
        let lists = Lists::new((TensorProductKind::Channels, false), &terms, (3, 1), (true, false))
            .unwrap();
        assert_eq!(lists.counts, [4, 5, 5]);
        let segments: Vec<_> = lists.words[..16].chunks(4).collect();
        assert_eq!(segments[0], [0, 2, 0, 0]);
        assert_eq!(segments[1], [2, 1, 3, TENSOR_LAST]);
        assert_eq!(segments[2], [4, 0, TENSOR_NONE, 1 | TENSOR_LAST]);
        assert_eq!(segments[3], [4, 1, 1, 2 | TENSOR_LAST]);
        let pairs: Vec<_> = lists.words[16..36].chunks(4).collect();
        assert_eq!(pairs[0], [4, 0, 0, 2]);
        assert_eq!(pairs[1], [6, 0, 2, 1]);
        assert_eq!(pairs[4], [5, 0, 4, 1]);
        assert_eq!(lists.words[36..46], [1, 0, 2, 1, 1, 2, 1, 9, 7, 3]);
        assert_eq!(lists.words[46..], [0, 2, 3, 4]);
    }

    #[test]
    fn entries_of_items_begin_at_multiples_of_four() {
        let terms = [term(1, 0, 4, 1, 0), term(1, 0, 4, 2, 1), term(2, 0, 1, 1, 2)];
        let lists =
            Lists::new((TensorProductKind::Items, false), &terms, (3, 1), (false, false)).unwrap();
        assert_eq!(lists.counts, [3, 0, 8]);
        let segments: Vec<_> = lists.words[..12].chunks(4).collect();
        assert_eq!(segments[0][..2], [0, 0]);
        assert_eq!(segments[1][..2], [0, 2]);
        assert_eq!(segments[2][..2], [4, 1]);
    }

    #[test]
    fn long_segments_are_cut() {
        let terms: Vec<Term> = (0..40).map(|a| term(0, 2, a, 0, a)).collect();
        let kind = (TensorProductKind::Connected, false);
        let lists = Lists::new(kind, &terms, (1, 4), (true, false)).unwrap();
        let counts: Vec<u32> = lists.words[..12].chunks(4).map(|s| s[1]).collect();
        assert_eq!(counts, [16, 16, 8]);
    }

    #[test]
    fn pieces_are_numbered_for_themselves_and_equally_long() {
        let terms =
            [term(0, 0, 4, 1, 0), term(1, 0, 4, 2, 1), term(1, 1, 6, 1, 2), term(2, 3, 5, 1, 9)];
        let kind = (TensorProductKind::Connected, false);
        let lists = Lists::new(kind, &terms, (3, 2), (true, false)).unwrap();
        // Pairs begin at even indices.
        assert_eq!((lists.counts, lists.totals), ([3, 5, 3], [4, 6, 4]));
        let [length, starts] = piece_words(lists.counts, 2).map(|n| n as usize);
        assert_eq!(lists.words.len(), 2 * length);
        let (first, second) = lists.words.split_at(length);
        assert_eq!(first[starts..starts + 3], [0, 1, 3]);
        assert_eq!(first[4..8], [2, 1, 0, 1]);
        assert_eq!(first[8..12], [4, 1, 1, 1 | TENSOR_LAST]);
        // The row starts end with the first segment of the second piece.
        assert_eq!(second[starts..starts + 3], [0, 1, 1]);
        assert_eq!(second[..4], [0, 1, 3, 2 | TENSOR_LAST]);
        assert_eq!(second[12..16], [5, 0, 0, 1]);
        assert_eq!(second[32..36], [1, 9, 0, TENSOR_NONE]);
    }
}
