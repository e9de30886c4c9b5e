//! Sparsity that is known only while running: detection of micro-tiles, and products with what was found.

#[doc(hidden)]
#[macro_export]
macro_rules! table_dynamic {
    ($m:ident $($before:tt)*) => {
        $crate::table_formats! { $m
            $($before)*
            detect "detect" DetectParams sm_80 Detection {
                detect_16_128x1: Direct, F16, MicroTiles<128, 1, STEP_TILES>;
                detect_16_64x1: Direct, F16, MicroTiles<64, 1, STEP_TILES>;
                detect_16_32x1: Direct, F16, MicroTiles<32, 1, STEP_TILES>;
                detect_16_16x16: Direct, F16, MicroTiles<16, 16, STEP_TILES>;
                detect_16_1x32: Direct, F16, MicroTiles<1, 32, STEP_TILES>;
                detect_16_1x64: Direct, F16, MicroTiles<1, 64, STEP_TILES>;
                detect_32_128x1: Direct, F32, MicroTiles<128, 1, STEP_TILES>;
                detect_32_64x1: Direct, F32, MicroTiles<64, 1, STEP_TILES>;
                detect_32_32x1: Direct, F32, MicroTiles<32, 1, STEP_TILES>;
                detect_32_16x16: Direct, F32, MicroTiles<16, 16, STEP_TILES>;
                detect_32_1x32: Direct, F32, MicroTiles<1, 32, STEP_TILES>;
                detect_32_1x64: Direct, F32, MicroTiles<1, 64, STEP_TILES>;
                detect_8_128x1: Direct, Int8, MicroTiles<128, 1, STEP_TILES>;
                detect_8_64x1: Direct, Int8, MicroTiles<64, 1, STEP_TILES>;
                detect_8_32x1: Direct, Int8, MicroTiles<32, 1, STEP_TILES>;
                detect_8_16x16: Direct, Int8, MicroTiles<16, 16, STEP_TILES>;
                detect_8_1x32: Direct, Int8, MicroTiles<1, 32, STEP_TILES>;
                detect_8_1x64: Direct, Int8, MicroTiles<1, 64, STEP_TILES>;
                detect_1_128x1: Direct, Int8, MicroTiles<128, 1, STEP_BITS>;
                detect_1_64x1: Direct, Int8, MicroTiles<64, 1, STEP_BITS>;
                detect_1_32x1: Direct, Int8, MicroTiles<32, 1, STEP_BITS>;
                detect_1_16x16: Direct, Int8, MicroTiles<16, 16, STEP_BITS>;
                detect_1_1x32: Direct, Int8, MicroTiles<1, 32, STEP_BITS>;
                detect_1_1x64: Direct, Int8, MicroTiles<1, 64, STEP_BITS>;
                detect_pack_128x1: Direct, F16, MicroTiles<128, 1, STEP_PACK>;
                detect_pack_64x1: Direct, F16, MicroTiles<64, 1, STEP_PACK>;
                detect_pack_32x1: Direct, F16, MicroTiles<32, 1, STEP_PACK>;
                detect_pack_32_128x1: Direct, F32, MicroTiles<128, 1, STEP_PACK>;
                detect_pack_32_64x1: Direct, F32, MicroTiles<64, 1, STEP_PACK>;
                detect_pack_32_32x1: Direct, F32, MicroTiles<32, 1, STEP_PACK>;
                detect_marked_128x1: Direct, F16, MarkedTiles<128>;
                detect_marked_64x1: Direct, F16, MarkedTiles<64>;
                detect_marked_32x1: Direct, F16, MarkedTiles<32>;
                detect_lengths: Direct, F32, DetectLengths;
                detect_choices: Direct, F32, DetectChoices;
            }
            channels "channels" ChannelsParams sm_80 Detection {
                channels_mark_16: Direct, F16, MarkChannels;
                channels_pack_16: Direct, F16, PackChannels;
            }
            sample "sample" SampleParams sm_80 Detection {
                sample_16: Direct, F16, SampleBox;
            }
            masks "masks" MaskParams sm_90a Detection {
                attention_masks: Direct, F32, MaskTiles;
            }
            live_rows "live_rows" LiveRowsParams sm_90a Live {
                live_rows_pack_f16: Direct, F16, PackRows;
                live_rows_pack_bf16: Direct, Bf16, PackRows;
                live_rows_norm_f16: Direct, F16, NormRows;
                live_rows_norm_bf16: Direct, Bf16, NormRows;
            }
            dense_live "dense_live" DenseParams sm_90a Live {
                dense_live_f16_128x128: Direct, F16, LiveTile<2, 2, 1>;
                dense_live_f16_128x128_k2: Direct, F16, LiveTile<2, 2, 2>;
                dense_live_f16_128x128_k4: Direct, F16, LiveTile<2, 2, 4>;
                dense_live_f16_128x256: Direct, F16, LiveTile<2, 4, 1>;
                dense_live_f16_128x256_k2: Direct, F16, LiveTile<2, 4, 2>;
                dense_live_f16_128x256_k4: Direct, F16, LiveTile<2, 4, 4>;
                dense_live_bf16_128x128: Direct, Bf16, LiveTile<2, 2, 1>;
                dense_live_bf16_128x128_k2: Direct, Bf16, LiveTile<2, 2, 2>;
                dense_live_bf16_128x128_k4: Direct, Bf16, LiveTile<2, 2, 4>;
                dense_live_bf16_128x256: Direct, Bf16, LiveTile<2, 4, 1>;
                dense_live_bf16_128x256_k2: Direct, Bf16, LiveTile<2, 4, 2>;
                dense_live_bf16_128x256_k4: Direct, Bf16, LiveTile<2, 4, 4>;
            }
            pit "pit" PitParams sm_90a Dynamic {
                pit_f16_128x1: Block, F16, PitColumns<128, false>;
                pit_f16_64x1: Block, F16, PitColumns<64, false>;
                pit_f16_32x1: Block, F16, PitColumns<32, false>;
                pit_bf16_128x1: Block, Bf16, PitColumns<128, false>;
                pit_bf16_64x1: Block, Bf16, PitColumns<64, false>;
                pit_bf16_32x1: Block, Bf16, PitColumns<32, false>;
            }
            pit_turned "pit_turned" PitParams sm_90a Dynamic {
                pit_f16_1x64: Block, F16, PitColumns<64, true>;
                pit_bf16_1x64: Block, Bf16, PitColumns<64, true>;
            }
            pit_right "pit_right" PitParams sm_90a Dynamic {
                pit_right_f16_1x64: Block, F16, PitColumns<64, true, C_COLUMNS>;
                pit_right_bf16_1x64: Block, Bf16, PitColumns<64, true, C_COLUMNS>;
            }
            transpose "transpose" TransposeParams sm_80 Transposition {
                transpose_16: Direct, F16, TransposeTile;
            }
            pit_tf32 "pit_tf32" PitParams sm_90a Dynamic {
                pit_tf32_128x1: Block, Tf32, PitWords<128>;
                pit_tf32_64x1: Block, Tf32, PitWords<64>;
                pit_tf32_32x1: Block, Tf32, PitWords<32>;
            }
            pit_conv "pit_conv" PitConvParams sm_90a Dynamic {
                pit_conv_f16_128x256: Block, F16, PitConv<128, 4, false>;
                pit_conv_f16_128x128: Block, F16, PitConv<128, 2, false>;
                pit_conv_f16_64x256: Block, F16, PitConv<64, 4, false>;
                pit_conv_bf16_128x256: Block, Bf16, PitConv<128, 4, false>;
                pit_conv_bf16_128x128: Block, Bf16, PitConv<128, 2, false>;
                pit_conv_bf16_64x256: Block, Bf16, PitConv<64, 4, false>;
                pit_conv_f16_filters_128x256: Block, F16, PitConv<128, 4, true>;
                pit_conv_f16_filters_128x128: Block, F16, PitConv<128, 2, true>;
                pit_conv_f16_filters_64x256: Block, F16, PitConv<64, 4, true>;
                pit_conv_bf16_filters_128x256: Block, Bf16, PitConv<128, 4, true>;
                pit_conv_bf16_filters_128x128: Block, Bf16, PitConv<128, 2, true>;
                pit_conv_bf16_filters_64x256: Block, Bf16, PitConv<64, 4, true>;
            }
            pit_sampled "pit_sampled" PitSampledParams sm_90a Dynamic {
                pit_f16_sampled: Block, F16, PitSampled;
                pit_bf16_sampled: Block, Bf16, PitSampled;
            }
            pit_few "pit_few" PitFewParams sm_90a Dynamic {
                pit_few_f16_16_n256: Block, F16, FewRows<16, 8>;
                pit_few_f16_16_n384: Block, F16, FewRows<16, 12>;
                pit_few_f16_32_n256: Block, F16, FewRows<32, 8>;
                pit_few_f16_32_n384: Block, F16, FewRows<32, 12>;
                pit_few_f16_64_n256: Block, F16, FewRows<64, 8>;
                pit_few_bf16_16_n256: Block, Bf16, FewRows<16, 8>;
                pit_few_bf16_16_n384: Block, Bf16, FewRows<16, 12>;
                pit_few_bf16_32_n256: Block, Bf16, FewRows<32, 8>;
                pit_few_bf16_32_n384: Block, Bf16, FewRows<32, 12>;
                pit_few_bf16_64_n256: Block, Bf16, FewRows<64, 8>;
            }
            marked "marked" MarkedParams sm_90a Marking {
                marked_f16_n256: Direct, F16, MarkedPanel<4>;
                marked_bf16_n256: Direct, Bf16, MarkedPanel<4>;
            }
            route "route" RouteParams sm_80 Routing {
                route_count: Direct, F32, RouteCount;
                route_place: Direct, F32, RoutePlace;
                route_sum_f16: Direct, F16, RouteSum;
                route_sum_bf16: Direct, Bf16, RouteSum;
                route_gradient_f16: Direct, F16, RouteGradient;
                route_gradient_bf16: Direct, Bf16, RouteGradient;
            }
            grouped "grouped" GroupedParams sm_90a Grouped {
                grouped_f16_256: Block, F16, GroupedTile<4, PLAIN>;
                grouped_f16_128: Block, F16, GroupedTile<2, PLAIN>;
                grouped_bf16_256: Block, Bf16, GroupedTile<4, PLAIN>;
                grouped_bf16_128: Block, Bf16, GroupedTile<2, PLAIN>;
                grouped_f16_256_t: Block, F16, GroupedTile<4, B_COLUMNS>;
                grouped_f16_128_t: Block, F16, GroupedTile<2, B_COLUMNS>;
                grouped_bf16_256_t: Block, Bf16, GroupedTile<4, B_COLUMNS>;
                grouped_bf16_128_t: Block, Bf16, GroupedTile<2, B_COLUMNS>;
            }
            grouped_grad "grouped_grad" GroupedGradParams sm_90a GroupedGradient {
                grouped_grad_f16: Block, F16, GroupedGrad;
                grouped_grad_bf16: Block, Bf16, GroupedGrad;
            }
        }
    };
}
