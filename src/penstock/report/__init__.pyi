from penstock.report.benchmark import BenchmarkReport as BenchmarkReport
from penstock.report.run_files import Run as Run
from penstock.report.run_files import Session as Session
from penstock.report.run_page import page_of as page_of
from penstock.report.run_page import trace_of as trace_of
from penstock.report.run_page import write_report as write_report
