//! PIT axes of the expressions in the paper (arXiv 2301.10936, table 1) and of handwritten ones.

use einsparse::dynamic::{DenseTile, dense_tiles, matmul_extents, micro_tiles, pit_axes};
use einsparse::einsum::Einsum;
use einsparse::registry::Dtype;

/// Indices that are PIT axes of the operands that contain them, and indices that are not, in alphabetical order.
fn split(text: &str) -> [String; 2] {
    let axes = pit_axes(&Einsum::parse(text).unwrap());
    [true, false].map(|pit| {
        let chosen = axes.iter().filter(|axis| axis.usage.is_pit() == pit);
        let mut names: Vec<&str> = chosen.map(|axis| axis.index.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" ")
    })
}

/// Table 1 of the paper, and its last line with index arrays in place of the affine indices.
#[test]
fn pit_axes_of_the_papers_list() {
    for (text, pit, fixed) in [
        ("C[p] = A[p,l]", "l p", ""),
        ("C[p] = A[p] + B[p]", "p", ""),
        ("C[m,n] = A[m,k] * B[k,n]", "k m n", ""),
        ("C[b,m,n] = A[b,m,k] * B[b,k,n]", "b k m n", ""),
        ("C[n,f,x,y] = A[n,m,x+i,y+j] * B[f,m,i,j]", "f m n", "i j x y"),
        ("C[n,f,x,y] = A[n,m,X[x,i],Y[y,j]] * B[f,m,i,j]", "f m n", "i j x y"),
    ] {
        assert_eq!(split(text), [pit.to_owned(), fixed.to_owned()], "{text}");
    }
}

#[test]
fn pit_axes_worked_by_hand() {
    for (text, pit, fixed) in [
        // A bias is gathered together with its rows.
        ("C[m,n] = relu(A[m,k] * B[k,n] + bias[m])", "k m n", ""),
        ("M[i,r] = T[i,j,k] * B[j,r] * C[k,r]", "i j k r", ""),
        ("s[] = A[m,k]", "k m", ""),
        ("d[i] = A[i,i]", "i", ""),
        // Only indices of the index arrays are fixed.
        ("Out[MO[p,q],m] += MV[p,q] * In[MI[p,q],c] * W[MW[p],c,m]", "c m", "p q"),
        ("C[AM[p],n] += AV[p] * B[AK[p],n]", "n", "p"),
        ("C[x,n] = A[2*x,n]", "n", "x"),
        ("C[x,n] = A[M[x+i],n] * B[i]", "n", "i x"),
    ] {
        assert_eq!(split(text), [pit.to_owned(), fixed.to_owned()], "{text}");
    }
}

#[test]
fn pit_axes_print_operand_and_reason() {
    let e = Einsum::parse("C[n,x] = A[n,X[x,i]] * B[i,n]").unwrap();
    let lines: Vec<String> = pit_axes(&e).iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "A.n: PIT axis, spatial",
            "B.i: fixed, in index arithmetic of X[x,i]",
            "B.n: PIT axis, spatial",
            "C.n: PIT axis, spatial",
            "C.x: fixed, in index arithmetic of X[x,i]",
        ]
    );
    let e = Einsum::parse("C[n,x] = A[n,2*x+i] * B[i,n]").unwrap();
    let lines: Vec<String> = pit_axes(&e).iter().map(ToString::to_string).collect();
    assert_eq!(lines[1], "B.i: fixed, in index arithmetic of 2*x+i");
    assert_eq!(lines[4], "C.x: fixed, in index arithmetic of 2*x+i");
    let e = Einsum::parse("C[m] = A[m,k]").unwrap();
    assert_eq!(pit_axes(&e)[1].to_string(), "A.k: PIT axis, summed");
}

fn shapes(text: &str, tile: [usize; 3], element: usize) -> Vec<String> {
    let e = Einsum::parse(text).unwrap();
    let [m, n, k] = tile;
    let tile = DenseTile { name: "by hand", m, n, k };
    let extents = matmul_extents(&e, &tile).unwrap();
    let tiles = micro_tiles(&e, &extents, element);
    tiles.iter().map(ToString::to_string).collect()
}

/// Figure 5 of the paper: the k axis of A yields columns, the m axis rows.
#[test]
fn micro_tiles_of_a_product() {
    assert_eq!(
        shapes("C[m,n] = A[m,k] * B[k,n]", [128, 256, 64], 2),
        ["A.m 1 x 64", "A.k 128 x 1", "B.k 1 x 256", "B.n 64 x 1", "C.m 1 x 256", "C.n 128 x 1"]
    );
    assert_eq!(
        shapes("C[b,m,n] = A[b,m,k] * B[b,k,n]", [32, 64, 32], 4)[..3],
        ["A.b 1 x 32 x 32", "A.m 1 x 1 x 32", "A.k 1 x 32 x 1"]
    );
}

/// Axes outside of affine indices are those of a product: n by f by m. A is read through windows and is not cut into
/// boxes.
#[test]
fn micro_tiles_of_a_convolution() {
    let sums = shapes("C[n,f,x,y] = A[n,m,x+i,y+j] * B[f,m,i,j]", [128, 256, 64], 2);
    let wanted =
        ["B.f 1 x 64 x 1 x 1", "B.m 256 x 1 x 1 x 1", "C.n 1 x 256 x 1 x 1", "C.f 128 x 1 x 1 x 1"];
    assert_eq!(sums, wanted);
    let arrays = "C[n,f,x,y] = A[n,m,X[x,i],Y[y,j]] * B[f,m,i,j]";
    assert_eq!(shapes(arrays, [128, 256, 64], 2), wanted);
}

/// 8 elements of 2 bytes are 16 bytes, so a 32-byte access contains two of them.
#[test]
fn micro_tiles_have_32_bytes() {
    let small = shapes("C[m,n] = A[m,k] * B[k,n]", [8, 16, 16], 2);
    assert_eq!(small[..2], ["A.m 1 x 16", "A.k 8 x 2"]);
    for dtype in [Dtype::F16, Dtype::F32, Dtype::F64, Dtype::Int8] {
        for tile in dense_tiles(dtype) {
            let e = Einsum::parse("C[m,n] = A[m,k] * B[k,n]").unwrap();
            let extents = matmul_extents(&e, &tile).unwrap();
            for micro in micro_tiles(&e, &extents, dtype.bytes()) {
                assert!(micro.len() * dtype.bytes() >= 32, "{tile}: {micro}");
            }
        }
    }
}

#[test]
fn micro_tiles_follow_for_every_tile_of_the_table() {
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::Tf32] {
        let tiles = dense_tiles(dtype);
        assert!(!tiles.is_empty(), "{dtype:?}");
        // A wgmma tile of 128 x 256 x 64, which TF32 does not have.
        let strip = (128, 256, 64);
        let has = tiles.iter().any(|t| (t.m, t.n, t.k) == strip);
        assert_eq!(has, dtype != Dtype::Tf32, "{dtype:?}: {tiles:?}");
        for tile in tiles {
            let e = Einsum::parse("C[m,n] = A[m,k] * B[k,n]").unwrap();
            let extents = matmul_extents(&e, &tile).unwrap();
            let micro = micro_tiles(&e, &extents, dtype.bytes());
            assert_eq!(micro.len(), 6);
            assert_eq!(micro[0].extents[1], tile.k);
            assert_eq!(micro[1].extents[0], tile.m);
        }
    }
}

#[test]
fn what_is_no_product_has_no_matrix_tile() {
    let tile = &dense_tiles(Dtype::F16)[0];
    for text in ["C[m] = A[m,k]", "C[m] = A[m,k] * x[k]", "d[i] = A[i,i] * B[i,i]"] {
        let e = Einsum::parse(text).unwrap();
        assert_eq!(matmul_extents(&e, tile), None, "{text}");
    }
    let e = Einsum::parse("C[n,x] = A[n,X[x,i]] * B[i,i]").unwrap();
    let micro = micro_tiles(&e, &Default::default(), 2);
    let named: Vec<&str> = micro.iter().map(|t| t.operand.as_str()).collect();
    assert_eq!(named, ["C"]);
}
