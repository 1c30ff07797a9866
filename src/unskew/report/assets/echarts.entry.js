// What the report uses of Apache ECharts; README.md says how it is built.
export { init, getInstanceByDom } from "echarts/core";
import { use } from "echarts/core";
import { BarChart, BoxplotChart, CustomChart, HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent, GridComponent, LegendComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent,
  VisualMapComponent,
} from "echarts/components";
import { LabelLayout } from "echarts/features";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";

use([
  BarChart, BoxplotChart, CustomChart, HeatmapChart, LineChart, ScatterChart, AriaComponent, GridComponent,
  LegendComponent, MarkAreaComponent, MarkLineComponent, TooltipComponent, VisualMapComponent, LabelLayout,
  CanvasRenderer, SVGRenderer,
]);
