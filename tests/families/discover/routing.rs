//! Choices of a router sorted by expert.

use einsparse::dynamic::Routing;
use einsparse::formats::Dense;
use einsparse::{Context, Scalar, Tensor};

use crate::support::runs::finish;
use crate::support::{Rng, on_both};

/// Distribution of a router's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::families) enum Router {
    /// Any expert.
    Even,
    /// Half of the choices name the first expert, half of the rest the second, and so on.
    Uneven,
    /// All choices name one expert.
    One,
    /// No choice names an expert.
    Nobody,
    /// Some choices name no expert.
    Holes,
}

pub(in crate::families) const ROUTERS: [Router; 5] =
    [Router::Even, Router::Uneven, Router::One, Router::Nobody, Router::Holes];

/// Returns choices among `experts`.
pub(in crate::families) fn choices(
    [tokens, top]: [usize; 2],
    experts: usize,
    router: Router,
    seed: u64,
) -> Dense<i32> {
    let mut rng = Rng(seed);
    let values = (0..tokens * top).map(|_| {
        let word = rng.word();
        let any = (word % experts as u64) as i32;
        match router {
            Router::Even => any,
            Router::Uneven => (word.trailing_zeros() as usize % experts) as i32,
            Router::One => experts as i32 - 1,
            Router::Nobody => [-1, experts as i32, i32::MAX, i32::MIN][word as usize % 4],
            Router::Holes if word >> 40 & 3 == 0 => [-1, experts as i32][word as usize % 2],
            Router::Holes => any,
        }
    });
    Dense::new(vec![tokens, top], values.collect()).unwrap()
}

/// Returns a routing of the choices.
pub(in crate::families) fn routed(
    context: &Context,
    choices: &Dense<i32>,
    experts: usize,
) -> Routing {
    let shape = [choices.shape()[0], choices.shape()[1]];
    let mut routing = Routing::new(context, shape, experts).unwrap();
    let there = context.upload_dense(choices).unwrap();
    finish(context, |stream| routing.run(&there, stream));
    routing
}

/// Sorts the choices stably: slots and offsets.
fn sorted(choices: &Dense<i32>, experts: usize) -> (Vec<u32>, Vec<u32>) {
    let bin = |&c: &i32| usize::try_from(c).map_or(experts, |c| c.min(experts));
    let mut order: Vec<u32> = (0..choices.values().len() as u32).collect();
    order.sort_by_key(|&number| bin(&choices.values()[number as usize]));
    let below = |e: usize| choices.values().iter().filter(|&c| bin(c) < e).count() as u32;
    (order, (0..experts + 2).map(below).collect())
}

fn routes(context: &Context, shape: [usize; 2], experts: usize, router: Router) {
    let choices = choices(shape, experts, router, 3 + shape[0] as u64);
    let routing = routed(context, &choices, experts);
    let (order, offsets) = sorted(&choices, experts);
    let name = format!("{shape:?} {experts} {router:?}");
    assert!(routing.order().unwrap() == order, "{name}: order");
    assert_eq!(routing.offsets().unwrap(), offsets, "{name}");
    if !context.is_cuda() {
        return;
    }
    let mut wanted = Vec::new();
    for expert in 0..experts {
        let (first, end) = (offsets[expert], offsets[expert + 1]);
        let rows = (end - first).div_ceil((end - first).div_ceil(128).max(1)).max(1);
        let starts = (first..end).step_by(rows as usize);
        wanted.extend(starts.map(|at| [expert as u32, at, (end - at).min(rows)]));
    }
    assert!(routing.panels().unwrap() == wanted, "{name}: panels");
}

on_both! {
    choices_are_sorted_by_expert: cpu [|cpu| {
        for router in ROUTERS {
            routes(cpu, [50, 3], 7, router);
            routes(cpu, [0, 1], 1, router);
        }
    }], gpu [|gpu| {
        for router in ROUTERS {
            for (shape, experts) in [
                ([0, 1], 4),
                ([1, 1], 1),
                ([31, 1], 3),
                ([4096, 1], 64),
                ([1025, 1], 64),
                ([513, 2], 31),
                ([4096, 8], 64),
                ([3000, 3], 1024),
                ([40_000, 8], 33),
            ] {
                routes(gpu, shape, experts, router);
            }
        }
    }];
}

/// Routing for a range of experts of a layer: all other choices count as no expert.
fn routes_of_some(
    context: &Context,
    shape: [usize; 2],
    experts: usize,
    own: std::ops::Range<usize>,
) {
    for router in ROUTERS {
        let all = choices(shape, experts, router, 11);
        let there = context.upload_dense(&all).unwrap();
        let mut routing = Routing::among(context, shape, own.clone()).unwrap();
        finish(context, |stream| routing.run(&there, stream));
        let of = |c: i32| usize::try_from(c).ok().filter(|c| own.contains(c));
        let (order, offsets) =
            sorted(&all.map(|c| of(c).map_or(-1, |c| (c - own.start) as i32)), own.len());
        assert!(routing.order().unwrap() == order, "{own:?} {router:?}");
        assert_eq!(routing.offsets().unwrap(), offsets, "{own:?} {router:?}");
        assert_eq!(routing.experts(), own.len());
    }
}

on_both! {
    choices_of_other_layers_are_of_no_expert: cpu [|cpu| {
        for own in [0..3, 2..7, 6..7] {
            routes_of_some(cpu, [50, 3], 7, own);
        }
        assert!(Routing::among(cpu, [5, 1], 3..3).is_err());
    }], gpu [|gpu| {
        for own in [0..64, 64..128, 127..128] {
            routes_of_some(gpu, [300, 2], 128, own.clone());
            routes_of_some(gpu, [4096, 8], 128, own);
        }
    }];
}

/// Integers from -2 to 2 in rows with stride `room` and NaN between them.
pub(in crate::families) fn integers<T: Scalar>(
    context: &Context,
    shape: &[usize],
    room: usize,
    seed: u64,
) -> Tensor<T> {
    let values = Rng(seed).integers::<T>(shape.iter().product());
    let dense = Dense::new(shape.to_vec(), values).unwrap();
    let gap = T::from_f64(f64::NAN);
    context.upload_strided(&dense, room, gap).unwrap()
}
