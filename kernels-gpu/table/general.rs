//! Any indirect Einsum, and the position lists of several sparse factors.

#[doc(hidden)]
#[macro_export]
macro_rules! table_general {
    ($m:ident $($before:tt)*) => {
        $crate::table_dynamic! { $m
            $($before)*
            join "join" JoinParams sm_80 Join {
                join_count: Direct, F32, JoinCount;
                join_starts: Direct, F32, JoinStarts;
                join_fill: Direct, F32, JoinFill;
            }
            einsum "einsum" EinsumParams sm_80 Einsum {
                einsum_f32_x1_wide1: Listed, F32, Wide<1, 0, 4>;
                einsum_f32_x2_wide2: Listed, F32, Wide<2, 0, 4>;
                einsum_f32_x2_wide1: Listed, F32, Wide<2, 1, 4>;
                einsum_f32_x3_wide2: Listed, F32, Wide<3, 1, 4>;
                einsum_f32_x3_wide1: Listed, F32, Wide<3, 2, 4>;
                einsum_f32_x4_wide2: Listed, F32, Wide<4, 2, 4>;
                einsum_f32_x4_wide1: Listed, F32, Wide<4, 3, 4>;
                einsum_f32_x5_wide2: Listed, F32, Wide<5, 3, 4>;
                einsum_f32_x5_wide1: Listed, F32, Wide<5, 4, 4>;
                einsum_f32_x1: Listed, F32, Thin<1>;
                einsum_f32_x2: Listed, F32, Thin<2>;
                einsum_f32_x3: Listed, F32, Thin<3>;
                einsum_f32_x4: Listed, F32, Thin<4>;
                einsum_f32_x5: Listed, F32, Thin<5>;
                einsum_f32_x1_across: Listed, F32, Across<1>;
                einsum_f32_x2_across: Listed, F32, Across<2>;
                einsum_f64_x1_wide1: Listed, F64, Wide<1, 0, 2>;
                einsum_f64_x2_wide2: Listed, F64, Wide<2, 0, 2>;
                einsum_f64_x2_wide1: Listed, F64, Wide<2, 1, 2>;
                einsum_f64_x3_wide2: Listed, F64, Wide<3, 1, 2>;
                einsum_f64_x3_wide1: Listed, F64, Wide<3, 2, 2>;
                einsum_f64_x4_wide2: Listed, F64, Wide<4, 2, 2>;
                einsum_f64_x4_wide1: Listed, F64, Wide<4, 3, 2>;
                einsum_f64_x5_wide2: Listed, F64, Wide<5, 3, 2>;
                einsum_f64_x5_wide1: Listed, F64, Wide<5, 4, 2>;
                einsum_f64_x1: Listed, F64, Thin<1>;
                einsum_f64_x2: Listed, F64, Thin<2>;
                einsum_f64_x3: Listed, F64, Thin<3>;
                einsum_f64_x4: Listed, F64, Thin<4>;
                einsum_f64_x5: Listed, F64, Thin<5>;
                einsum_f64_x1_across: Listed, F64, Across<1>;
                einsum_f64_x2_across: Listed, F64, Across<2>;
                einsum_f16_x1_wide1: Listed, F16, Wide<1, 0, 8>;
                einsum_f16_x2_wide2: Listed, F16, Wide<2, 0, 8>;
                einsum_f16_x2_wide1: Listed, F16, Wide<2, 1, 8>;
                einsum_f16_x3_wide2: Listed, F16, Wide<3, 1, 8>;
                einsum_f16_x3_wide1: Listed, F16, Wide<3, 2, 8>;
                einsum_f16_x4_wide2: Listed, F16, Wide<4, 2, 8>;
                einsum_f16_x4_wide1: Listed, F16, Wide<4, 3, 8>;
                einsum_f16_x5_wide2: Listed, F16, Wide<5, 3, 8>;
                einsum_f16_x5_wide1: Listed, F16, Wide<5, 4, 8>;
                einsum_f16_x1: Listed, F16, Thin<1>;
                einsum_f16_x2: Listed, F16, Thin<2>;
                einsum_f16_x3: Listed, F16, Thin<3>;
                einsum_f16_x4: Listed, F16, Thin<4>;
                einsum_f16_x5: Listed, F16, Thin<5>;
                einsum_f16_x1_across: Listed, F16, Across<1>;
                einsum_f16_x2_across: Listed, F16, Across<2>;
                einsum_bf16_x1_wide1: Listed, Bf16, Wide<1, 0, 8>;
                einsum_bf16_x2_wide2: Listed, Bf16, Wide<2, 0, 8>;
                einsum_bf16_x2_wide1: Listed, Bf16, Wide<2, 1, 8>;
                einsum_bf16_x3_wide2: Listed, Bf16, Wide<3, 1, 8>;
                einsum_bf16_x3_wide1: Listed, Bf16, Wide<3, 2, 8>;
                einsum_bf16_x4_wide2: Listed, Bf16, Wide<4, 2, 8>;
                einsum_bf16_x4_wide1: Listed, Bf16, Wide<4, 3, 8>;
                einsum_bf16_x5_wide2: Listed, Bf16, Wide<5, 3, 8>;
                einsum_bf16_x5_wide1: Listed, Bf16, Wide<5, 4, 8>;
                einsum_bf16_x1: Listed, Bf16, Thin<1>;
                einsum_bf16_x2: Listed, Bf16, Thin<2>;
                einsum_bf16_x3: Listed, Bf16, Thin<3>;
                einsum_bf16_x4: Listed, Bf16, Thin<4>;
                einsum_bf16_x5: Listed, Bf16, Thin<5>;
                einsum_bf16_x1_across: Listed, Bf16, Across<1>;
                einsum_bf16_x2_across: Listed, Bf16, Across<2>;
            }
        }
    };
}
