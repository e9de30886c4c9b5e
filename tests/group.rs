//! Ranks on the CPU: 1 to 5 threads, and processes that are killed, stopped, or never join.

// The rest of the module is used by the tests on GPUs.
#[allow(dead_code)]
mod cases;
mod cases_moe;
mod cases_ops;
mod processes;

use crate::support::assert_error;
use std::time::Duration;

use einsparse::formats::{Csr, CsrPattern, Dense, bf16, generate};
use einsparse::group::{
    Group, GroupSum, Halo, Partition, Sharded, ShardedMoe, ShardedMoeOptions, ShardedSpmm,
};
use einsparse::nn::{MoeGradients, MoeInputs, MoeOptions};
use einsparse::{Context, Error};

use crate::models::all::{atoms::Atoms, domains};
use cases::{graph, on_ranks};

fn cpus(ranks: usize) -> Vec<Context> {
    vec![Context::unchecked_cpu(); ranks]
}

#[test]
fn products_are_those_of_one_rank() {
    for ranks in 1..=5 {
        cases::products(&cpus(ranks), None);
    }
}

#[test]
fn gradients_and_sums_are_added_in_the_order_of_ranks() {
    for ranks in 1..=5 {
        cases::transposed(&cpus(ranks));
        cases::sums(&cpus(ranks));
    }
}

#[test]
fn a_layer_of_a_graph_network_is_that_of_one_rank() {
    for ranks in [1, 3] {
        cases::training_step(&cpus(ranks));
    }
}

#[test]
fn operations_of_one_gpu_work_on_halos() {
    for ranks in 1..=5 {
        let cpus = cpus(ranks);
        cases_ops::sampled(&cpus);
        cases_ops::sequences(&cpus);
        cases_ops::heads_of_ranks(&cpus);
        cases_ops::attention_gradient::<f32>(&cpus);
        cases_ops::messages(&cpus);
        cases_ops::neighbours(&cpus);
    }
}

#[test]
fn experts_of_ranks_make_what_those_of_one_make() {
    for ranks in 1..=4 {
        cases_moe::experts::<f32>(&cpus(ranks));
    }
    cases_moe::experts::<bf16>(&cpus(3));
}

#[test]
fn gradients_of_experts_go_back_to_their_tokens() {
    for ranks in 1..=4 {
        cases_moe::expert_gradients::<f32>(&cpus(ranks));
    }
}

#[test]
fn a_force_field_over_ranks_is_that_of_one() {
    // Domains end within layers of the liquid, and contain some of the atoms, not all.
    let atoms = Atoms::liquid([7, 2, 3], 3.6).unwrap();
    for ranks in 1..=3 {
        let narrow = domains::error::<f32>(&cpus(ranks), &atoms, 8, 3.5).unwrap();
        let wide = domains::error::<f64>(&cpus(ranks), &atoms, 4, 3.5).unwrap();
        assert!(narrow < 5e-6 && wide < 1e-12, "{ranks}: {narrow}, {wide}");
    }
}

#[test]
fn experts_refuse_what_ranks_cannot_share() {
    let results = on_ranks(&cpus(2), |group| {
        let tokens = Partition::even(8, 2);
        let layer = |experts: usize, tokens: &Partition, shares: Option<usize>| {
            let options = MoeOptions {
                tokens: 8,
                experts,
                top_k: 1,
                model: 8,
                hidden: 8,
                ..MoeOptions::default()
            };
            let sharded = ShardedMoeOptions { shares, ..ShardedMoeOptions::default() };
            ShardedMoe::<f32>::new(&group, &options, tokens, &sharded)
        };
        for (experts, shares) in [(1, None), (4, Some(3)), (4, Some(0)), (4, Some(6))] {
            let error = layer(experts, &tokens, shares).unwrap_err();
            assert_error!(error, Error::OutOfRange { name, .. } if name == "shares");
        }
        assert!(layer(4, &Partition::even(9, 2), None).is_err());
        let error = layer(4 + group.rank(), &tokens, None).unwrap_err();
        assert_error!(error, Error::Rank { rank: 1, .. });
        let options = MoeOptions {
            tokens: 8,
            experts: 4,
            top_k: 1,
            model: 16,
            hidden: 16,
            transposed: true,
            scaled: true,
            ..MoeOptions::default()
        };
        let sharded = ShardedMoeOptions::default();
        let error = ShardedMoe::<f32>::new(&group, &options, &tokens, &sharded).unwrap_err();
        assert_error!(error, Error::OutOfRange { name, .. } if name == "scaled");
        // Without training, the layer stores no gradient.
        let mut layer = layer(4, &tokens, None)?;
        let (ctx, stream) = (group.context(), group.context().stream()?);
        let (x, weights) = (ctx.zeros(&[4, 8])?, ctx.zeros::<f32>(&[4, 1])?);
        let (up, down) = (ctx.zeros(&[2, 8, 8])?, ctx.zeros(&[2, 8, 8])?);
        let (mut dx, mut dweights) = (ctx.zeros(&[4, 8])?, ctx.zeros(&[4, 1])?);
        let (mut dup, mut ddown) = (ctx.zeros(&[2, 8, 8])?, ctx.zeros(&[2, 8, 8])?);
        let to =
            MoeGradients { x: &mut dx, weights: &mut dweights, up: &mut dup, down: &mut ddown };
        let (choices, mut out) = (ctx.zeros::<i32>(&[4, 1])?, ctx.zeros(&[4, 8])?);
        let (up, down) = ((&up).into(), (&down).into());
        let inputs = MoeInputs { x: &x, choices: &choices, weights: &weights, up, down };
        assert!(layer.backward(&inputs, &x, to, &stream).is_err());
        let wide = ctx.zeros(&[4, 8, 8])?;
        let wide = MoeInputs { up: (&wide).into(), ..inputs };
        let wrong = layer.forward(&wide, &mut out, &stream);
        assert_error!(wrong, Err(Error::Shape { .. }));
        layer.forward(&inputs, &mut out, &stream)
    });
    results.into_iter().for_each(|r| r.unwrap());
}

#[test]
fn rows_are_dealt_by_cost() {
    // One row costs as much as all other rows together.
    let rows = Partition::of_counts(&[100, 1, 1, 1, 1], 8, 2);
    assert_eq!([rows.range(0), rows.range(1)], [0..1, 1..5]);
    for (counts, ranks) in [(vec![], 3), (vec![5], 3), (vec![0; 4], 5), (vec![3; 1000], 7)] {
        let rows = Partition::of_counts(&counts, 8, ranks);
        let ends: Vec<usize> = (0..ranks).map(|r| rows.range(r).end).collect();
        assert!(ends.is_sorted() && rows.ranks() == ranks && rows.rows() == counts.len());
        for row in 0..counts.len() {
            assert!(rows.range(rows.owner(row)).contains(&row));
        }
    }
    let even = Partition::of_counts(&[3; 1000], 8, 7);
    assert!((0..7).all(|r| (142..=144).contains(&even.range(r).len())));
    let skewed = generate::rmat(12, 8, 1).unwrap();
    let rows = Partition::balanced(&skewed, 32, 4);
    let entries = |r: usize| {
        let own = rows.range(r);
        skewed.offsets()[own.end] - skewed.offsets()[own.start]
    };
    let all = skewed.columns().len() as u32;
    assert!((0..4).all(|r| entries(r) < all * 30 / 100), "{rows:?}");
}

/// Returns the error of each rank.
fn errors<R>(results: Vec<einsparse::Result<R>>) -> Vec<Error> {
    let error = |r: einsparse::Result<R>| r.err().expect("no rank may go on");
    results.into_iter().map(error).collect()
}

#[test]
fn ranks_that_disagree_learn_of_it() {
    let a = graph(64, 6, 3);
    let product = |n: [usize; 2], split: [usize; 2]| {
        on_ranks(&cpus(2), |group| {
            let rows = Partition::even(64, 2);
            let columns = match split[group.rank()] {
                0 => rows.clone(),
                _ => Partition::balanced(a.pattern(), 8, 2),
            };
            let mine = Sharded::of(&group, &a, &rows)?;
            ShardedSpmm::new(&group, &mine, &columns, n[group.rank()], &Default::default())
        })
    };
    assert!(product([8, 8], [0, 0]).iter().all(Result::is_ok));
    for error in errors(product([8, 16], [0, 0])) {
        assert_error!(error, Error::Rank { rank: 1, .. });
    }
    for error in errors(product([8, 8], [0, 1])) {
        assert_error!(error, Error::Rank { rank: 1, .. });
    }
    // A partition for other ranks, one of other rows, and a part that ends early.
    let wrong: [fn(&Group) -> Partition; 2] = [
        |group| Partition::even(64, 2 + group.rank()),
        |group| Partition::even(64 + group.rank(), 2),
    ];
    for partition in wrong {
        let results = on_ranks(&cpus(2), |group| Sharded::of(&group, &a, &partition(&group)));
        let found = errors(results);
        assert_error!(found[0], Error::Rank { rank: 1, .. });
    }
    let results = on_ranks(&cpus(3), |group| {
        let rows = Partition::even(64, 3);
        let part = Sharded::of(&group, &a, &rows)?.local().clone();
        let read = match group.rank() {
            1 => {
                let (path, kind) = ("a.mtx".into(), std::io::ErrorKind::UnexpectedEof);
                Err(Error::Io { path, line: Some(17), kind, reason: "ends early".into() })
            }
            _ => Ok(part),
        };
        Sharded::new(&group, read, &rows)
    });
    let found: Vec<String> = errors(results).iter().map(Error::to_string).collect();
    assert_eq!(found[1], "a.mtx:17: ends early");
    assert_eq!([&found[0], &found[2]], ["rank 1: a.mtx:17: ends early"; 2]);
}

#[test]
fn ranks_that_call_something_else_learn_of_it() {
    let results = on_ranks(&cpus(2), |group| {
        group.set_limit(Duration::from_secs(1));
        match group.rank() {
            0 => group.barrier(),
            // The rank is alive, but never joins.
            _ => {
                std::thread::sleep(Duration::from_secs(2));
                group.barrier().and(group.barrier())
            }
        }
    });
    assert_error!(results[0], Err(Error::Rank { rank: 1, .. }));
    assert!(results[1].is_err());
    // Ranks call different operations; then one rank is a step ahead.
    let results = on_ranks(&cpus(2), |group| match group.rank() {
        0 => group.barrier(),
        _ => group.all_ok(Ok(())),
    });
    assert_error!(results[0], Err(Error::Rank { .. }));
    assert!(results[1].is_err());
    let results = on_ranks(&cpus(2), |group| {
        let pattern = CsrPattern::new(1, 4, vec![0, 2], vec![0, 3])?;
        let halo = Halo::<f32>::new(&group, &pattern, &Partition::even(4, 2), 1)?;
        let stream = group.context().stream()?;
        if group.rank() == 0 {
            group.barrier()?;
        }
        halo.exchange(&mut halo.tensor()?, &stream)?;
        group.barrier()
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
}

#[test]
fn a_rank_that_leaves_ends_the_others() {
    let results = on_ranks(&cpus(3), |group| match group.rank() {
        1 => Ok(()),
        _ => (0..100).try_for_each(|_| group.barrier()),
    });
    for rank in [0, 2] {
        assert_error!(results[rank], Err(Error::Rank { rank: 1, .. }));
    }
}

#[test]
fn tensors_of_another_making_are_refused() {
    let results = on_ranks(&cpus(2), |group| {
        let a = graph(32, 5, 1);
        let rows = Partition::even(32, 2);
        let mine = Sharded::of(&group, &a, &rows)?;
        let product = ShardedSpmm::new(&group, &mine, &rows, 8, &Default::default())?;
        let stream = group.context().stream()?;
        let (mut b, mut c) = (product.operand()?, product.output()?);
        let mut bare = Sharded::zeros(&group, &rows, 8)?;
        // The operand lacks rows for the halo; then the output lacks a column.
        assert!(product.run(&mut bare, &mut c, &stream).is_err());
        let mut narrow = Sharded::zeros(&group, &rows, 7)?;
        assert!(product.run(&mut b, &mut narrow, &stream).is_err());
        let [few, more] = [vec![1], vec![1, 30]]
            .map(|named| CsrPattern::new(1, 32, vec![0, named.len() as u32], named));
        let halo = Halo::<f32>::new(&group, &few?, &rows, 8)?;
        // Row 30 is stored on rank 1 itself.
        let found = halo.columns(&more?);
        let refused = matches!(found, Err(Error::InvalidIndex { value: 30, .. }));
        assert_eq!(refused, group.rank() == 0);
        assert!(
            GroupSum::<f32>::new(&group, &[3])?
                .run(&mut Context::unchecked_cpu().zeros(&[4])?, &stream)
                .is_err()
        );
        product.run(&mut b, &mut c, &stream)?;
        let mut product = product;
        let other = Sharded::of(&group, &graph(32, 7, 9), &rows)?;
        assert!(product.set_values(&other, &stream).is_err());
        // An equal number of nonzeros at other positions.
        let two = Partition::even(4, 2);
        let [first, moved] = [[0, 1, 2, 3], [1, 0, 3, 2]].map(|columns| {
            let pattern = CsrPattern::new(4, 4, vec![0, 1, 2, 3, 4], columns.to_vec())?;
            Sharded::of(&group, &Csr::new(pattern, vec![1.0f32; 4])?, &two)
        });
        let mut product = ShardedSpmm::new(&group, &first?, &two, 8, &Default::default())?;
        assert!(product.set_values(&moved?, &stream).is_err());
        Ok(())
    });
    results.into_iter().for_each(|r| r.unwrap());
}

#[test]
fn new_values_are_taken() {
    let a = graph(40, 4, 2);
    let doubled = a.values().iter().map(|v| 2.0 * v).collect();
    let twice = Csr::new(a.pattern().as_ref().clone(), doubled).unwrap();
    let results = on_ranks(&cpus(2), |group| {
        let rows = Partition::even(40, 2);
        let stream = group.context().stream()?;
        let [first, second] = [&a, &twice].map(|a| Sharded::of(&group, a, &rows));
        let (first, second) = (first?, second?);
        let mut all = Vec::new();
        for transposed in [false, true] {
            let make = match transposed {
                false => ShardedSpmm::new,
                true => ShardedSpmm::transposed,
            };
            let mut product = make(&group, &first, &rows, 8, &Default::default())?;
            let (mut b, mut c) = (product.operand()?, product.output()?);
            b.local_mut()?.write(&Dense::new([20, 8], vec![1.0; 160])?)?;
            product.run(&mut b, &mut c, &stream)?;
            let before = c.to_dense()?.into_values();
            product.set_values(&second, &stream)?;
            product.run(&mut b, &mut c, &stream)?;
            all.push((before, c.to_dense()?.into_values()));
        }
        Ok(all)
    });
    for (before, after) in results.into_iter().flat_map(|r| r.unwrap()) {
        assert!(before.iter().zip(&after).all(|(a, b)| 2.0 * a == *b));
    }
}

#[test]
fn files_are_read_in_parts() {
    let a = graph(90, 5, 4);
    let folder = std::env::temp_dir().join(format!("einsparse-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["a.mtx", "a.npz"] {
        let path = folder.join(name);
        match name {
            "a.mtx" => einsparse::formats::io::write_matrix_market(&path, &a).unwrap(),
            _ => einsparse::formats::io::write_npz(&path, &a).unwrap(),
        }
        for ranks in [1, 3] {
            let results = on_ranks(&cpus(ranks), |group| {
                let read = Sharded::<Csr<f32>>::read(&group, &path, 8)?;
                let rows = Partition::balanced(a.pattern(), 8, ranks);
                assert_eq!(read.rows(), &rows);
                let wanted = Sharded::of(&group, &a, &rows)?;
                assert_eq!(read.local(), wanted.local());
                Ok(())
            });
            results.into_iter().for_each(|r| r.unwrap());
        }
        // One rank reads a truncated file, or a missing one.
        let whole = std::fs::read(&path).unwrap();
        let short = folder.join(format!("short-{name}"));
        std::fs::write(&short, &whole[..whole.len() / 2]).unwrap();
        for wrong in [short, folder.join("none.mtx")] {
            let results = on_ranks(&cpus(2), |group| {
                let path = [&path, &wrong][group.rank()];
                Sharded::<Csr<f32>>::read(&group, path, 8)
            });
            let found = errors(results);
            assert_error!(found[0], Error::Rank { rank: 1, .. });
            assert_error!(found[1], Error::Format(_));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
