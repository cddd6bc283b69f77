// SPDX-License-Identifier: Apache-2.0
//
// The style sheet of plan_page.cc, for light and dark, for a wide and a narrow window, and for
// paper.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_PAGE_STYLE_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_PAGE_STYLE_H_

namespace spillway::command {

inline constexpr char kPageStyle[] = R"css(
:root {
  color-scheme: light dark;
  --ink: #1b2330; --soft: #5d6778; --line: #e2e6ec; --paper: #fff; --card: #f4f6f9; --track: #e8ebf0;
  --yes: #17693f; --yes-back: #e4f3ea; --no: #a3251c; --no-back: #fbe9e7; --mark: #c1121f;
  --weights: #3d7ab8; --gradients: #d98032; --master-weights: #2a9d8f; --moments: #6cb8a9;
  --activations: #8a5fb0; --workspace: #b09a3e; --commit: #8b95a5; --leased: #c2c9d4;
  --forward: #6aa0d6; --backward: #3d7ab8; --update: #2a9d8f; --waiting: #d1495b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6eaf0; --soft: #9aa5b5; --line: #2c3442; --paper: #141922; --card: #1c2330; --track: #262f3d;
    --yes: #7fd6a4; --yes-back: #173226; --no: #ff9b8f; --no-back: #3a1d1d; --mark: #ff6b6b;
    --commit: #667184; --leased: #46505f;
  }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; max-width: 1000px;
  margin: 0 auto; padding: 1.8em 1.2em 4em; color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
header p { margin: .15em 0; color: var(--soft); }
.kind { text-transform: uppercase; letter-spacing: .12em; font-size: .75em; font-weight: 600; }
h1 { font-size: 2em; line-height: 1.2; margin: .1em 0 .3em; }
h2 { font-size: 1.2em; margin: 2.4em 0 .2em; }
h3, h4 { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1em; font-size: 1em; margin: 1em 0 .3em; }
h4 { font-weight: 400; font-size: .93em; margin: .7em 0 .2em; }
h3 span, h4 span { font-weight: 400; color: var(--soft); font-variant-numeric: tabular-nums; }
.note { color: var(--soft); margin: .1em 0 .7em; font-size: .93em; }
.verdict { font-size: 1.3em; line-height: 1.35; font-weight: 600; border-radius: 10px; padding: .7em .9em; margin: 1em 0; }
.yes { color: var(--yes); background: var(--yes-back); } .no { color: var(--no); background: var(--no-back); }
.lacks, h3 .lacks, h4 .lacks { color: var(--no); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .7em; }
.cards div { background: var(--card); border-radius: 8px; padding: .7em .9em; color: var(--soft); font-size: .86em; line-height: 1.35; }
.cards b { display: block; font-size: 1.65em; font-weight: 600; line-height: 1.3; color: var(--ink); font-variant-numeric: tabular-nums; }
.bar { position: relative; display: flex; height: 1.7em; border-radius: 5px; background: var(--track); overflow: hidden; }
.bar i { flex: none; min-width: 1px; border-right: 1px solid var(--paper); }
.bar i:last-of-type { border-right: 0; }
.bar b { position: absolute; top: 0; bottom: 0; width: 0; border-left: 2px dashed var(--mark); }
h4 + .bar { height: .85em; border-radius: 3px; }
.legend { display: flex; flex-wrap: wrap; gap: .1em 1.2em; margin: .4em 0 .2em; font-size: .88em; color: var(--soft); }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; vertical-align: -.05em; }
em { font-style: normal; color: var(--ink); font-variant-numeric: tabular-nums; }
.weights { background: var(--weights); } .gradients { background: var(--gradients); } .master_weights { background: var(--master-weights); }
.moments { background: var(--moments); } .activations { background: var(--activations); } .workspace { background: var(--workspace); }
.commit { background: var(--commit); } .leased { background: var(--leased); } .forward { background: var(--forward); }
.backward { background: var(--backward); } .update { background: var(--update); } .waiting { background: var(--waiting); }
.rows { display: grid; grid-template-columns: minmax(7em, auto) 1fr; gap: .35em 1em; margin: .6em 0; align-items: center; }
.rows dt { color: var(--soft); } .rows dd { display: grid; grid-template-columns: 1fr 11em; gap: .8em; margin: 0; align-items: center; }
.rows span { height: 1em; border-radius: 3px; background: var(--track); overflow: hidden; }
.rows i { display: block; height: 100%; }
svg { width: 100%; min-width: 640px; height: auto; display: block; }
svg text { font: 12.5px system-ui, "DejaVu Sans", sans-serif; fill: var(--soft); }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg line { stroke: var(--line); } svg .mark { stroke: var(--mark); stroke-dasharray: 4 4; }
.lane0 { fill: var(--backward); } .lane1 { fill: var(--waiting); } .lane2 { fill: var(--master-weights); }
.lane3 { fill: var(--gradients); } .lane4 { fill: var(--forward); } .lane5 { fill: var(--activations); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92em; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th { text-align: left; font-weight: 500; color: var(--soft); border-bottom: 1px solid var(--line); padding: .25em .8em .25em 0; }
td { padding: .35em .8em .35em 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th.n, td.n { text-align: right; white-space: nowrap; } .not td { color: var(--soft); } td.lacks, .not td.lacks { color: var(--no); }
small { color: var(--soft); }
pre { background: var(--card); border-radius: 8px; padding: .8em 1em; white-space: pre-wrap; font-size: .88em; }
li { margin: .2em 0; }
@media (max-width: 560px) { .rows { grid-template-columns: 1fr; gap: .1em; } .rows dd { margin-bottom: .5em; grid-template-columns: 1fr 9.5em; } h1 { font-size: 1.5em; } }
@media print { body { max-width: none; } h2, h3, h4 { break-after: avoid; } .bar i, .rows i, .legend i { print-color-adjust: exact; } }
)css";

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_PAGE_STYLE_H_
