"""What tests of pages do with a browser."""

from selenium.webdriver.common.action_chains import ActionChains


def resize(browser, width, height, *, mobile=False):
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)


def one(page, selector):
    found = page.find_elements("css selector", selector)
    assert len(found) == 1, f"{len(found)} × {selector}"
    return found[0]


def mouse_on(page, number, sample):
    """Moves the mouse to where a sample is on a map, and says where that is."""

    mark = page.find_elements("css selector", "svg.field")[number].find_elements("css selector", ".mark")[sample]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    # Not the middle of its box: a triangle stands about its centre of mass.
    x, y = page.execute_script("const at = arguments[0].getScreenCTM(); return [at.e, at.f]", mark)
    actions = ActionChains(page)
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()
    return actions


def press(page, *keys):
    page.switch_to.active_element.send_keys(*keys)
