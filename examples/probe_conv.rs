use einsparse::formats::{Dense, bf16, f16, generate};
use einsparse::ops::*;
use einsparse::*;
use std::sync::Arc;
use std::time::Instant;
fn bench<T: Scalar>(
    ctx: &Context,
    map: &Arc<KernelMap>,
    vox: &[Voxel],
    c: usize,
    options: &ConvOptions,
) -> Result<()> {
    let n = vox.len();
    let xs = generate::random_values::<T>(n * c, 1);
    let ws = generate::random_values::<T>(27 * c * c, 2);
    let x = ctx.upload_dense(&Dense::new([n, c], xs.clone())?)?;
    let w = ctx.upload_dense(&Dense::new([27, c, c], ws.clone())?)?;
    let conv = match SparseConv3d::<T>::new(map, [c, c], options) {
        Ok(c) => c,
        Err(e) => {
            println!("{e}");
            return Ok(());
        }
    };
    let mut out = ctx.zeros::<T>(&[n, c])?;
    let stream = ctx.stream()?;
    conv.run(&x, &w, None, &mut out, &stream)?;
    stream.synchronize()?;
    let host = out.to_dense()?;
    // check
    let places: std::collections::HashMap<Voxel, usize> = vox
        .iter()
        .cloned()
        .enumerate()
        .map(|(i, v)| (v, i))
        .collect();
    let mut worst = 0f64;
    for o in (0..n).step_by(977) {
        let mut s = vec![0f64; c];
        let mut a = vec![0f64; c];
        let mut t = 0;
        for dx in -1..2 {
            for dy in -1..2 {
                for dz in -1..2 {
                    let v = vox[o];
                    if let Some(&i) = places.get(&[v[0], v[1] + dx, v[2] + dy, v[3] + dz]) {
                        for k in 0..c {
                            let xv = xs[i * c + k].to_f64();
                            for m in 0..c {
                                let p = xv * ws[(t * c + k) * c + m].to_f64();
                                s[m] += p;
                                a[m] += p.abs();
                            }
                        }
                    }
                    t += 1;
                }
            }
        }
        for m in 0..c {
            let e = (host.values()[o * c + m].to_f64() - s[m]).abs() / (a[m] * 2e-3 + 1e-9);
            if e > worst || e.is_nan() {
                worst = e;
            }
        }
    }
    let mut time = |what: &str, f: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        f()?;
        stream.synchronize()?;
        let t = Instant::now();
        for _ in 0..40 {
            f()?;
        }
        stream.synchronize()?;
        println!(
            "  {what} {} c{c} {:.4} ms",
            T::NAME,
            t.elapsed().as_secs_f64() * 1e3 / 40.0
        );
        Ok(())
    };
    println!("{} err {worst:.3} of 2e-3 sum|ab|", conv.variant());
    time("forward", &mut || conv.run(&x, &w, None, &mut out, &stream))?;
    let mut dx = ctx.zeros::<T>(&[n, c])?;
    time("dIn", &mut || {
        conv.run_input_gradient(&x, &w, &mut dx, &stream)
    })?;
    let mut dw = ctx.zeros::<T>(&[27, c, c])?;
    if let Err(e) = time("dW", &mut || {
        conv.run_weight_gradient(&x, &x, &mut dw, &stream)
    }) {
        println!("  dW: {e}");
    }
    Ok(())
}
fn main() -> Result<()> {
    let ctx = Context::new();
    println!("{ctx}");
    let path = std::path::Path::new(&std::env::var("EINSPARSE_DATA").unwrap_or("data".into()))
        .join("point-cloud/office.csv");
    let text = std::fs::read_to_string(path).unwrap();
    let vox: Vec<Voxel> = text
        .lines()
        .skip(1)
        .map(|l| {
            let v: Vec<i32> = l.split(',').map(|s| s.parse().unwrap()).collect();
            [0, v[0], v[1], v[2]]
        })
        .collect();
    let t = Instant::now();
    let map = Arc::new(KernelMap::submanifold(&ctx, &vox, [3, 3, 3])?);
    println!(
        "map {:.2} ms pairs {:?}",
        t.elapsed().as_secs_f64() * 1e3,
        map.pairs()?
    );
    let tf = ConvOptions {
        precision: Precision::Tf32,
        ..Default::default()
    };
    let full = ConvOptions::default();
    for c in [64, 128] {
        bench::<f16>(&ctx, &map, &vox, c, &full)?;
        bench::<bf16>(&ctx, &map, &vox, c, &full)?;
        bench::<f32>(&ctx, &map, &vox, c, &tf)?;
        bench::<f32>(&ctx, &map, &vox, c, &full)?;
    }
    Ok(())
}
