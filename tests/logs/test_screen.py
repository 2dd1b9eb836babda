from ding_grpo.logs.screen import shorten, show


def test_shorten_keeps_the_end_on_one_line_and_a_file_gets_no_control_codes(capsys):
    assert shorten('a\n b', 10) == 'a b' and shorten('0123456789', 7) == '...6789'
    show('hello')
    assert capsys.readouterr().out == 'hello\n'
